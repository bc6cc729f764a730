"""FP8 folders: one scale, rows, groups, blocks, stacked experts, MiMo's chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from humming_convert.standard.numbers import values
from tests.formats.folders import E4M3, E5M2, E8M0, MODULE, Array, clean, e4m3_codes, factors, named, reading_of

BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"}
TENSOR = {"quant_method": "fp8", "activation_scheme": "static"}


def fp8(scale: Array, suffix: str = "weight_scale", n: int = 32, k: int = 128, **more: Any) -> dict[str, Any]:
    return {"weight": e4m3_codes(n, k).view(E4M3), suffix: scale, **more}


def meant(scale: Array, n: int = 32, k: int = 128) -> Array:
    """[n, k] from scales that broadcast."""
    return values("float8e4m3")[e4m3_codes(n, k)] * scale.astype(float)


def spread(scale: Array, n: int, k: int, block: tuple[int, int] = (128, 128)) -> Array:
    return np.repeat(np.repeat(scale, block[0], 0)[:n], block[1], 1)[:, :k]


@pytest.mark.parametrize("suffix", ["weight_scale_inv", "scale", "weight_scale"])
def test_whole_blocks_stay_blocks_under_any_name(tmp_path: Path, suffix: str) -> None:
    scale = factors(2, 3, dtype=np.float32)
    got = clean(reading_of(tmp_path, BLOCK, named(fp8(scale, suffix, 256, 384))))
    form = got.layer.form.scale
    assert (form.kind, form.n, form.k, form.dtype, got.layer.family) == ("block", 128, 128, "float32", "fp8")
    np.testing.assert_array_equal(got.weight(), meant(spread(scale, 256, 384), 256, 384))


@pytest.mark.parametrize("dtype", ["bf16", "e8m0", "u8"])
def test_block_scales_of_other_dtypes_become_float32_exactly(tmp_path: Path, dtype: str) -> None:
    raw = np.array([[0, 1, 127, 254]], np.uint8)
    scale = {"bf16": factors(1, 4), "e8m0": raw.view(E8M0), "u8": raw}[dtype]
    want = scale.astype(np.float32) if dtype == "bf16" else np.exp2(raw.astype(float) - 127).astype(np.float32)
    got = clean(reading_of(tmp_path, BLOCK, named(fp8(scale, "weight_scale_inv", 128, 512))))
    np.testing.assert_array_equal(got.value("weight_scale"), want)


@pytest.mark.parametrize(("n", "k", "g"), [(160, 128, 128), (128, 448, 64), (320, 64, 64), (320, 320, 64)])
def test_blocks_that_do_not_fit_become_rows(tmp_path: Path, n: int, k: int, g: int) -> None:
    scale = factors(-(-n // 128), -(-k // 128), dtype=np.float32)
    got = clean(reading_of(tmp_path, BLOCK, named(fp8(scale, "weight_scale_inv", n, k))))
    assert (got.layer.form.scale.kind, got.layer.form.scale.k, got.layer.form.scale.dtype) == ("group", g, "float32")
    np.testing.assert_array_equal(got.weight(), meant(spread(scale, n, k), n, k))


@pytest.mark.parametrize("block", [[128, 10**12], [10**12, 64]])
def test_a_block_larger_than_the_matrix_ends_with_it(tmp_path: Path, block: list[int]) -> None:
    scale = factors(2, 1, dtype=np.float32) if block[0] == 128 else factors(1, 3, dtype=np.float32)
    got = clean(reading_of(tmp_path, {**BLOCK, "weight_block_size": block}, named(fp8(scale, "weight_scale_inv", 256, 192))))
    full = np.repeat(scale, 128, 0) if block[0] == 128 else np.repeat(scale, 64, 1)
    np.testing.assert_array_equal(got.weight(), meant(full, 256, 192))


def test_one_block_over_the_whole_matrix_is_a_factor(tmp_path: Path) -> None:
    scale = factors(1, 1, dtype=np.float32)
    got = clean(reading_of(tmp_path, BLOCK, named(fp8(scale, "weight_scale_inv", 96, 64))))
    assert (got.layer.form.scale.kind, got.value("weight_scale").shape) == ("tensor", (1,))
    np.testing.assert_array_equal(got.weight(), meant(scale, 96, 64))


@pytest.mark.parametrize("shape", [(), (1,)])
def test_one_scale_is_a_float32_factor_whatever_its_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    scale = np.full(shape, 0.3, np.float32)
    got = clean(reading_of(tmp_path, TENSOR, named(fp8(scale, input_scale=np.float32(0.7)))))
    assert (got.layer.form.scale.kind, got.value("weight_scale").shape) == ("tensor", (1,))
    np.testing.assert_array_equal(got.value("input_scale"), np.float32([0.7]))
    np.testing.assert_array_equal(got.weight(), meant(np.float32(0.3)))
    assert got.layer.declared is not None and got.layer.declared.mode == "static_tensor"


def test_mistral_names_mean_the_same(tmp_path: Path) -> None:
    tensors = fp8(np.float32(0.3), "weight_scale_inv", activation_scale=np.float32(0.7))
    got = clean(reading_of(tmp_path, TENSOR, named(tensors)))
    assert got.layer.form.scale.kind == "tensor"
    np.testing.assert_array_equal(got.value("input_scale"), np.float32([0.7]))


@pytest.mark.parametrize("shape", [(32, 1), (32,)])
def test_rows_keep_the_dtype_of_their_scales(tmp_path: Path, shape: tuple[int, ...]) -> None:
    scale = factors(*shape)
    got = clean(reading_of(tmp_path, {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, named(fp8(scale))))
    assert (got.layer.form.scale.kind, got.layer.form.scale.dtype) == ("channel", "bfloat16")
    np.testing.assert_array_equal(got.weight(), meant(scale.reshape(32, 1)))


def test_float_groups_are_groups(tmp_path: Path) -> None:
    scale = factors(32, 4)
    got = clean(reading_of(tmp_path, TENSOR, named(fp8(scale))))
    assert (got.layer.form.scale.kind, got.layer.form.scale.k) == ("group", 32)
    np.testing.assert_array_equal(got.weight(), meant(np.repeat(scale, 32, 1)))


def test_e5m2_weights_are_read(tmp_path: Path) -> None:
    weight = (e4m3_codes() & 0x7B).view(E5M2)
    got = clean(reading_of(tmp_path, TENSOR, named({"weight": weight, "weight_scale": np.float32(1)})))
    assert got.layer.form.number.name == "float8e5m2"
    np.testing.assert_array_equal(got.weight(), weight.astype(float))


EXPERTS = "model.layers.0.mlp.experts"
SIZES = {"hidden_size": 128, "moe_intermediate_size": 192}  # gate_up_proj [384, 128], down_proj [128, 192]


@pytest.mark.parametrize("own_name", [True, False])
def test_stacked_experts_are_one_layer_a_projection(tmp_path: Path, own_name: bool) -> None:
    c, scale = e4m3_codes(384, 128, 2), factors(2, 3, 1, dtype=np.float32)
    name = f"{EXPERTS}.gate_up_proj"
    tensors = (
        {f"{name}.weight": c.view(E4M3), f"{name}.weight_scale_inv": scale}
        if own_name
        else {name: c.view(E4M3), f"{name}_scale_inv": scale}
    )
    got = clean(reading_of(tmp_path, BLOCK, tensors, **SIZES))
    assert got.layer.parts == (f"{EXPERTS}.0.gate_up_proj", f"{EXPERTS}.1.gate_up_proj")
    for e in range(2):
        np.testing.assert_array_equal(got.weight(expert=e), values("float8e4m3")[c[e]] * spread(scale[e], 384, 128).astype(float))
    assert got.passed == () and got.unverified == ["stacked FP8 experts"]


@pytest.mark.parametrize(
    ("leaf", "sizes", "why"),
    [
        ("gate_up_proj", {"hidden_size": 384, "moe_intermediate_size": 64}, "[E, K, N]"),
        ("gate_up_proj", {}, "cannot be told"),
        ("unheard_of", SIZES, "cannot be told"),
        ("gate_up_proj", {"hidden_size": 128, "moe_intermediate_size": 64}, "cannot be told"),
    ],
    ids=["transposed", "no sizes", "no name", "other sizes"],
)
def test_rule_experts_orientation(tmp_path: Path, leaf: str, sizes: dict[str, int], why: str) -> None:
    tensors = {"weight": e4m3_codes(384, 128, 2).view(E4M3), "weight_scale_inv": factors(2, 3, 1, dtype=np.float32)}
    got = reading_of(tmp_path, BLOCK, named(tensors, f"{EXPERTS}.{leaf}"), **sizes)
    assert why in got.finding("experts-orientation").message and not got.layers


def test_scales_of_rows_prove_how_experts_are_stored(tmp_path: Path) -> None:
    tensors = {"weight": e4m3_codes(32, 128, 2).view(E4M3), "weight_scale": factors(2, 32, 1)}
    got = clean(reading_of(tmp_path, TENSOR, named(tensors, f"{EXPERTS}.gate_up_proj")))
    assert got.layer.form.scale.kind == "channel"


def test_experts_stored_the_other_way_are_refused(tmp_path: Path) -> None:
    tensors = {"weight": e4m3_codes(32, 128, 2).view(E4M3), "weight_scale": factors(2, 1, 128)}
    got = reading_of(tmp_path, TENSOR, named(tensors, "model.layers.0.mlp.experts.gate_up_proj"))
    assert "[E, K, N]" in got.finding("tensor-shape").message and not got.layers


# ------------------------------------------------------------------ MiMo
MIMO = {"model_type": "mimo_v2_flash", "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 48, "v_head_dim": 32}
CHUNKS, Q, K, V = 2, 4 * 48, 48, 32
ROWS = Q + K + V  # 272 rows in a chunk: 3 blocks, 2 * 3 = 6 against ceil(544 / 128) = 5
QKV = "model.layers.0.self_attn.qkv_proj"


def chunk_order() -> Array:
    parts = [(0, Q), (Q, K), (Q + K, V)]
    return np.concatenate([np.concatenate([c * ROWS + at + np.arange(size) for c in range(CHUNKS)]) for at, size in parts])


def test_chunks_of_qkv_are_put_in_order_where_the_grid_tells(tmp_path: Path) -> None:
    n, scale = CHUNKS * ROWS, factors(6, 1, dtype=np.float32)
    got = clean(reading_of(tmp_path, BLOCK, named(fp8(scale, "weight_scale_inv", n), QKV), **MIMO))
    by_row = np.concatenate([np.repeat(scale[3 * c : 3 * c + 3], 128, 0)[:ROWS] for c in range(CHUNKS)])
    np.testing.assert_array_equal(got.weight(), meant(by_row, n)[chunk_order()])


def test_a_plain_qkv_is_left_alone(tmp_path: Path) -> None:
    n, scale = CHUNKS * ROWS, factors(5, 1, dtype=np.float32)
    got = clean(reading_of(tmp_path, BLOCK, named(fp8(scale, "weight_scale_inv", n), QKV), **MIMO))
    np.testing.assert_array_equal(got.weight(), meant(spread(scale, n, 128), n))


EVEN = {**MIMO, "head_dim": 64, "v_head_dim": 128}  # 256 + 64 + 128 = 448 rows: 4 blocks a chunk, 8 against ceil(896 / 128) = 7
SQUARE = {**MIMO, "head_dim": 64, "v_head_dim": 64}  # 384 rows: 3 blocks a chunk, 6 either way


@pytest.mark.parametrize(("layout", "moved"), [("plain", False), ("chunked", True)])
def test_an_option_decides_where_the_grid_does_not(tmp_path: Path, layout: str, moved: bool) -> None:
    tensors = named(fp8(factors(6, 1, dtype=np.float32), "weight_scale_inv", 768), QKV)
    got = clean(reading_of(tmp_path, BLOCK, tensors, qkv_layout=layout, **SQUARE))
    assert (not np.array_equal(got.codes(), e4m3_codes(768))) is moved


def test_rule_qkv_layout(tmp_path: Path) -> None:
    tensors = named(fp8(factors(6, 1, dtype=np.float32), "weight_scale_inv", 768), QKV)
    got = reading_of(tmp_path, BLOCK, tensors, **SQUARE)
    assert "--qkv-layout" in (got.finding("qkv-layout").advice or "") and not got.layers


# ------------------------------------------------------------------ rules
def test_rule_fp8_fnuz(tmp_path: Path) -> None:
    reading_of(tmp_path, {**TENSOR, "fmt": "float8_e4m3fnuz"}, named(fp8(np.float32(1)))).finding("fp8-fnuz")


@pytest.mark.parametrize(("fmt", "lies"), [("e5m2", 1), ("float8_e5m2", 1), ("e4m3", 0), ("float8_e4m3fn", 0), (None, 0)])
def test_rule_fp8_fmt_lies(tmp_path: Path, fmt: str | None, lies: int) -> None:
    got = reading_of(tmp_path, {**TENSOR, "fmt": fmt}, named(fp8(np.float32(1))))
    assert got.codes_found == ["fp8-fmt-lies"] * lies and got.layer.form.number.name == "float8e4m3"


def test_rule_fp8_scheme_unknown(tmp_path: Path) -> None:
    reading_of(tmp_path, {**TENSOR, "activation_scheme": "sometimes"}, named(fp8(np.float32(1)))).finding("fp8-scheme-unknown")


def test_rule_fp8_block_unknown(tmp_path: Path) -> None:
    got = reading_of(tmp_path, TENSOR, named(fp8(factors(3, 5, dtype=np.float32))))
    assert "[3, 5]" in got.finding("fp8-block-unknown").message


SHAPES = {"mlp.gate_proj": (320, 256), "mlp.down_proj": (256, 320), "self_attn.kv_b_proj": (128, 64)}


def of_blocks(block: tuple[int, int], shapes: dict[str, tuple[int, int]] = SHAPES) -> dict[str, Array]:
    """Modules with the scale grids of a block size."""
    out: dict[str, Array] = {}
    for name, (n, k) in shapes.items():
        scale = factors(-(-n // block[0]), -(-k // block[1]), dtype=np.float32)
        out |= named(fp8(scale, "weight_scale_inv", n, k), f"model.layers.0.{name}")
    return out


WRONG = [[128, 112], [112, 128], [64, 64], [1, 128], [256, 256], [10**9, 10**9]]


@pytest.mark.parametrize("said", WRONG)
@pytest.mark.parametrize("form", ["fp8", "compressed-tensors"])
def test_rule_block_size_lies(tmp_path: Path, said: list[int], form: str) -> None:
    """128 x 128 fits all modules, the size of the config not all: the one is taken in all, also where the other fits too (K = 320)."""
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": said}
    group = {"targets": ["Linear"], "weights": weights, "format": "float-quantized"}
    config = {**BLOCK, "weight_block_size": said} if form == "fp8" else {"quant_method": form, "config_groups": {"group_0": group}}
    got = reading_of(tmp_path, config, of_blocks((128, 128)))
    assert got.codes_found == ["block-size-lies"] and str(said) in got.finding("block-size-lies").message
    for name, (n, k) in SHAPES.items():
        scale = factors(-(-n // 128), -(-k // 128), dtype=np.float32)
        np.testing.assert_array_equal(got.weight(f"model.layers.0.{name}"), meant(spread(scale, n, k), n, k))


def test_another_power_of_two_is_followed_where_it_divides_a_length(tmp_path: Path) -> None:
    got = reading_of(tmp_path, BLOCK, of_blocks((64, 32)))
    assert got.codes_found == ["block-size-lies"] and "64 x 32" in got.finding("block-size-lies").message


@pytest.mark.parametrize("block", [(128, 96), (150, 128), (96, 96)])
def test_a_size_that_fits_some_modules_only_is_an_error_in_each_of_the_others(tmp_path: Path, block: tuple[int, int]) -> None:
    """Neither the size of the config nor another fits all."""
    odd = of_blocks(block, {"mlp.up_proj": (448, 448)})
    got = reading_of(tmp_path, BLOCK, {**of_blocks((128, 128)), **odd})
    assert [f.layer for f in got.findings.errors] == ["model.layers.0.mlp.up_proj"]
    assert "no other size is proved" in got.finding("tensor-shape").message


def test_a_wrong_size_that_is_right_along_one_axis_by_chance_is_refused(tmp_path: Path) -> None:
    """N = 320 has 3 blocks of 112 rows and 3 of 128: which of them is not said by a config that lies about the columns."""
    got = reading_of(tmp_path, {**BLOCK, "weight_block_size": [112, 64]}, of_blocks((128, 128), {"mlp.gate_proj": (320, 256)}))
    assert got.codes_found == ["tensor-shape"] and not got.layers


def test_a_size_that_fits_everywhere_is_taken_whatever_it_is(tmp_path: Path) -> None:
    clean(reading_of(tmp_path, {**BLOCK, "weight_block_size": [112, 96]}, of_blocks((112, 96))))


@pytest.mark.parametrize("said", [{}, {"weight_block_size": None}])
def test_rule_block_size_guessed(tmp_path: Path, said: dict[str, Any]) -> None:
    got = reading_of(tmp_path, {"quant_method": "fp8", **said}, of_blocks((128, 128)))
    assert got.codes_found == ["block-size-guessed"] and len(got.layers) == 3


def test_blocks_of_one_row_are_groups(tmp_path: Path) -> None:
    scale = factors(32, 2)
    got = clean(reading_of(tmp_path, {**BLOCK, "weight_block_size": [1, 64]}, named(fp8(scale, "weight_scale_inv"))))
    assert (got.layer.form.scale.kind, got.layer.form.scale.k) == ("group", 64)
    np.testing.assert_array_equal(got.weight(), meant(np.repeat(scale, 64, 1)))


def test_a_grid_that_was_rounded_down_is_said_to_be(tmp_path: Path) -> None:
    got = reading_of(tmp_path, BLOCK, named(fp8(factors(2, 3, dtype=np.float32), "weight_scale_inv", 320, 448)))
    assert "rounded down" in got.finding("tensor-shape").message and "[3, 4]" in got.finding("tensor-shape").message


def test_a_block_scale_that_is_missing_is_named(tmp_path: Path) -> None:
    got = reading_of(tmp_path, BLOCK, named({"weight": e4m3_codes().view(E4M3)}))
    assert got.finding("tensor-missing").tensor == f"{MODULE}.weight_scale_inv"


def test_two_scales_side_by_side_are_an_error(tmp_path: Path) -> None:
    tensors = fp8(factors(1, 1, dtype=np.float32), "weight_scale_inv", weight_scale=np.float32(1))
    assert reading_of(tmp_path, BLOCK, named(tensors)).finding("tensor-unknown").tensor == f"{MODULE}.weight_scale"


def test_a_module_in_the_list_that_is_packed_is_read_with_a_warning(tmp_path: Path) -> None:
    got = reading_of(tmp_path, {**TENSOR, "ignored_layers": [MODULE]}, named(fp8(np.float32(1))))
    assert got.codes_found == ["ignored-quantized"] and len(got.layers) == 1


def test_a_router_named_like_a_projection_excludes_nothing_else(tmp_path: Path) -> None:
    module = "model.layers.0.mlp.gate_proj"
    clean(reading_of(tmp_path, {**TENSOR, "modules_to_not_convert": ["model.layers.0.mlp.gate"]}, named(fp8(np.float32(1)), module)))


def test_the_smallest_e8m0_scale_is_not_zero() -> None:
    assert float(np.uint8(0).reshape(1).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)[0]) == 2.0**-127


def test_rule_entry_regex(tmp_path: Path) -> None:
    got = reading_of(tmp_path, {**TENSOR, "ignored_layers": ["re:("]}, named(fp8(np.float32(1))))
    assert "re:(" in got.finding("entry-regex").message
