"""Folders of several ranks: each rank's bytes are those of packing its slice of the whole layer, made here with plain numpy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from humming_convert import Refused, api
from humming_convert.checkpoint.header import read_header
from humming_convert.checkpoint.reading import reader
from humming_convert.demo.models import Sample, Shape, decoder, gpt_oss
from humming_convert.demo.samples import DECODERS
from humming_convert.layouts import prepare
from humming_convert.layouts.prepare import Standard
from humming_convert.plan import answer
from humming_convert.plan.types import Plan, PlannedLayer
from humming_convert.proof import stream
from humming_convert.standard.expr import Context
from humming_convert.standard.lossy import Meter
from humming_convert.standard.packing import stream_pack, stream_unpack
from humming_convert.targets.environment import Environment
from tests.whole import assert_whole, manifest_of

Array = NDArray[Any]
EVEN = Shape(hidden=128, intermediate=256, heads=2, kv_heads=2, head_dim=128)
FOUR = Shape(hidden=128, intermediate=512, heads=4, kv_heads=2, head_dim=128)
MOE = Shape(hidden=256, intermediate=256, heads=4, kv_heads=2, head_dim=64, experts=5, expert_intermediate=128)
ROWS = {row["name"]: row for row in DECODERS}


def sample(name: str, shape: Shape = EVEN) -> Sample:
    row = ROWS[name]
    return decoder(**{**row, "shape": MOE if row["model_type"] == "qwen3_moe" else shape})


# ------------------------------------------------------------------ the same cut, in numpy
def rows_of(leaf: str, n: int, tp: int, rank: int, kv_heads: int, interleaved: bool) -> Array:
    """Rows that a rank holds of one source matrix."""
    every = np.arange(n)
    if leaf in ("k_proj", "v_proj"):
        heads = every.reshape(kv_heads, -1)
        mine = heads[rank * kv_heads // tp : (rank + 1) * kv_heads // tp] if kv_heads >= tp else heads[[rank * kv_heads // tp]]
        return mine.reshape(-1)
    if leaf == "gate_up_proj":
        assert interleaved
    return every if leaf in ("o_proj", "down_proj") else every.reshape(tp, -1)[rank]


def of_rank(whole: Standard, parts: list[str], tp: int, rank: int, kv_heads: int, experts: Array | None, interleaved: bool) -> Standard:
    """The slice of a whole layer that a rank holds. experts: those of the rank, None for all (and then they are cut)."""
    leaves = [p.rpartition(".")[2] for p in parts[: len(whole.stack_n)]]
    cut = experts is None
    rows, stack_n, first = [], [], 0
    for leaf, n in zip(leaves, whole.stack_n, strict=True):
        mine = rows_of(leaf, n, tp, rank, kv_heads, interleaved) if cut else np.arange(n)
        rows.append(first + mine)
        stack_n.append(len(mine))
        first += n
    order = np.concatenate(rows)
    columns = np.arange(whole.k).reshape(tp, -1)[rank] if cut and leaves[0] in ("o_proj", "down_proj") else np.arange(whole.k)
    bits, form = whole.form.number.bits, whole.form
    out: dict[str, Array] = {}
    for role, stored in whole.tensors.items():
        x = stored if whole.experts is not None else stored[None]
        x = x[experts] if experts is not None else x
        if role == "weight":
            x = stream_pack(stream_unpack(x, bits, whole.k)[:, order][..., columns], bits)
        elif role == "zero_point" and form.zero_point == "int":
            codes = np.swapaxes(stream_unpack(np.swapaxes(x, -1, -2), bits, whole.n), -1, -2)
            codes = codes[:, order][..., groups(columns, codes.shape[-1], whole.k)]
            x = np.swapaxes(stream_pack(np.swapaxes(codes, -1, -2), bits), -1, -2)
        elif role == "weight_scale" and form.scale.kind == "block":
            x = x[:, np.unique(order // form.scale.n)][..., groups(columns, x.shape[-1], whole.k)]
        elif role == "weight_scale" and form.scale.kind != "tensor":
            x = x[:, order][..., groups(columns, x.shape[-1], whole.k)]
        elif (role == "weight_scale_2" and form.scale_2 == "channel") or role == "bias":
            x = x[:, order]
        if role == "bias" and len(columns) < whole.k and rank:
            x = np.zeros_like(x)
        out[role] = np.ascontiguousarray(x if whole.experts is not None else x[0])
    count = None if whole.experts is None else len(experts) if experts is not None else whole.experts
    return Standard(form=form, n=len(order), k=len(columns), experts=count, stack_n=tuple(stack_n), tensors=out)


def groups(columns: Array, count: int, k: int) -> Array:
    return np.unique(columns * count // k)


def expected(plan: Plan, tp: int, ep: int, rank: int, kv_heads: int) -> Iterator[tuple[PlannedLayer, dict[str, Array]]]:
    """(layer of the plan for one rank, the packed tensors of this rank) by the numpy reference. plan: for one rank."""
    assert plan.request.target is not None
    context = Context(read=reader("mmap"), meter=Meter())
    for p in plan.layers:
        assert p.recipe is not None
        whole = Standard.of(p.layer, context)
        experts = None
        if p.layer.experts is not None and ep > 1:
            experts = np.array_split(np.arange(p.layer.experts), ep)[rank]
        mine = of_rank(whole, list(p.layer.parts), tp, rank % tp, kv_heads, experts, p.layer.row_order == "interleaved")
        packed = prepare(mine, plan.request.target, p.recipe.input, param_dtype=plan.request.dtype, env=Environment())
        yield p, dict(packed.tensors)


def stored(folder: Path, label: str) -> dict[str, Array]:
    out: dict[str, Array] = {}
    for path in folder.glob(f"model-packed-{label}-*.safetensors"):
        out |= tensors_of(path)
    return out


def tensors_of(path: Path) -> dict[str, Array]:
    header = read_header(path)
    assert not isinstance(header, list), header
    read = reader("mmap")
    return {name: read(view) for name, view in header.tensors.items()}


def assert_ranks(model: Path, out: Path, kv_heads: int, tp: int, ep: int = 1, act: str = "bf16", dtype: str | None = None) -> None:
    """Converts for tp and ep; every rank's tensors are the expected bytes and the folder verifies against its source."""
    options: dict[str, Any] = {"target": "sm90", "act": act, "dtype": dtype, "act_fallback": True}
    api.convert(api.plan(model, tp=tp, ep=ep, **options), out=out)
    assert_whole(out)
    assert not api.verify(out, source=model).findings.errors
    whole = api.plan(model, **options)
    for rank in range(max(tp, ep)):
        label = f"tp{rank % tp + 1}of{tp}" + (f"-ep{rank + 1}of{ep}" if ep not in (1, tp) else "")
        have = stored(out, label)
        for p, tensors in expected(whole, tp, ep, rank, kv_heads):
            for role, want in tensors.items():
                got = have.pop(p.outputs[role].name)
                assert (got.dtype, got.shape) == (want.dtype, want.shape), (p.layer.name, role, got.shape, want.shape)
                assert got.tobytes() == want.tobytes(), (rank, p.layer.name, role)
        assert all("input_scale" in name for name in have), sorted(have)


# ------------------------------------------------------------------ bytes
@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if row["model_type"] != "qwen3_moe" and n != "gptq-4bit-larger"])
def test_a_rank_holds_what_packing_its_slice_gives(name: str, tmp_path: Path) -> None:
    assert_ranks(sample(name).write(tmp_path), tmp_path / "out", EVEN.kv_heads, 2, dtype="bf16")


@pytest.mark.parametrize("name", ["gptq-4bit-v2-asym", "awq-4bit-gemm", "ct-fp8-block", "ct-mxfp4", "fp8-modelopt"])
def test_key_value_heads_fewer_than_ranks_are_on_several(name: str, tmp_path: Path) -> None:
    assert_ranks(sample(name, FOUR).write(tmp_path), tmp_path / "out", FOUR.kv_heads, 4, act="fp8", dtype="bf16")


@pytest.mark.parametrize(("tp", "ep"), [(2, 1), (1, 2), (2, 2), (2, 4), (1, 5)])
def test_experts_are_cut_or_shared_out_whole(tp: int, ep: int, tmp_path: Path) -> None:
    assert_ranks(sample("ct-int4-qwen3-moe").write(tmp_path), tmp_path / "out", MOE.kv_heads, tp, ep)


@pytest.mark.parametrize(("tp", "ep"), [(3, 1), (1, 3)])
def test_interleaved_gate_and_up_rows_are_cut_in_pairs_and_a_bias_is_added_once(tp: int, ep: int, tmp_path: Path) -> None:
    assert_ranks(gpt_oss("mxfp4-gpt-oss").write(tmp_path), tmp_path / "out", 1, tp, ep, act="fp8")


@pytest.mark.parametrize("name", ["gptq-4bit-v2-asym", "gptq-3bit-v1-asym", "awq-4bit-gemm", "ct-int4-sym", "ct-int8", "ct-nvfp4"])
def test_compiled_passes_give_the_same_bytes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = sample(name).write(tmp_path)
    plan = api.plan(model, target="sm90", act="bf16", dtype="bf16", tp=2)
    api.convert(plan, out=tmp_path / "reference")
    monkeypatch.setattr(stream, "SMALL", 0)
    monkeypatch.setattr(answer, "SMALL", 0)
    assert all(stream.streams(p.recipe, p.layer.tensors["weight"]) for p in plan.layers)  # type: ignore[arg-type]
    plan = api.plan(model, target="sm90", act="bf16", dtype="bf16", tp=2)
    api.convert(plan, out=tmp_path / "compiled")
    for label in ("tp1of2", "tp2of2"):
        want, have = stored(tmp_path / "reference", label), stored(tmp_path / "compiled", label)
        assert want.keys() == have.keys() and all(want[k].tobytes() == have[k].tobytes() for k in want)


# ------------------------------------------------------------------ data decide rank by rank
def test_a_zero_code_on_one_rank_does_not_keep_the_others_from_sign_magnitude(tmp_path: Path) -> None:
    """gate and up never use code 0 here but for one code of the last row, which the second rank holds (layouts.md 12)."""
    made = sample("gptq-4bit-v1-sym")
    words = made.tensors["model.layers.0.mlp.up_proj.qweight"].copy()
    words[0, -1] &= ~np.int32(15)
    model = Sample(
        **{
            **{k: getattr(made, k) for k in Sample.__dataclass_fields__},
            "tensors": {**made.tensors, "model.layers.0.mlp.up_proj.qweight": words},
        }
    )
    folder = model.write(tmp_path)
    plan = api.plan(folder, target="sm90", act="bf16", dtype="bf16", tp=2)
    types = [p.recipe.config.b_dtype for p in plan.layers if p.layer.name.endswith("gate_up_proj") and p.recipe is not None]
    assert types == ["float4e0m3", "uint4"]
    assert_ranks(folder, tmp_path / "out", EVEN.kv_heads, 2, dtype="bf16")


# ------------------------------------------------------------------ manifests
def test_each_rank_has_a_full_manifest_and_the_common_one_lists_them(tmp_path: Path) -> None:
    model = sample("ct-int4-sym").write(tmp_path)
    api.convert(api.plan(model, target="sm90", act="bf16", tp=2), out=tmp_path / "out")
    common = manifest_of(tmp_path / "out")
    assert common["layers"] == [] and common["parallel"] == {"tp_size": 2, "tp_rank": None, "ep_size": 1, "ep_rank": None}
    assert [r["file"] for r in common["ranks"]] == ["humming_manifest-tp1of2.json", "humming_manifest-tp2of2.json"]
    for number, rank in enumerate(common["ranks"]):
        full = json.loads((tmp_path / "out" / rank["file"]).read_text())
        assert rank["tp_rank"] == number == full["parallel"]["tp_rank"]
        files = {t["file"] for layer in full["layers"] for t in layer["tensors"].values()}
        assert files == {f["name"] for f in full["files"] if f["name"].startswith("model-packed")}
        assert all(f"tp{number + 1}of2" in name for name in files)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["tp_size"] == 2


def test_unquantized_tensors_stay_whole(tmp_path: Path) -> None:
    made = sample("ct-int4-sym")
    api.convert(api.plan(made.write(tmp_path), target="sm90", act="bf16", tp=2), out=tmp_path / "out")
    common = tensors_of(next((tmp_path / "out").glob("model-common-*.safetensors")))
    for name, array in common.items():
        assert array.tobytes() == made.tensors[name].tobytes()


def test_verify_finds_a_changed_bit_of_any_rank(tmp_path: Path) -> None:
    api.convert(api.plan(sample("ct-int4-sym").write(tmp_path), target="sm90", act="bf16", tp=2), out=tmp_path / "out")
    path = next((tmp_path / "out").glob("model-packed-tp2of2-*.safetensors"))
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    found = api.verify(tmp_path / "out").findings.errors
    assert {f.code for f in found} == {"digest-differs"} and {f.file for f in found} == {path.name}


def test_verify_finds_a_changed_manifest_of_a_rank(tmp_path: Path) -> None:
    api.convert(api.plan(sample("ct-int4-sym").write(tmp_path), target="sm90", act="bf16", tp=2), out=tmp_path / "out")
    path = tmp_path / "out" / "humming_manifest-tp2of2.json"
    path.write_text(path.read_text().replace('"pad_n": 0', '"pad_n": 1', 1))
    assert "manifest-damaged" in {f.code for f in api.verify(tmp_path / "out").findings.errors}


# ------------------------------------------------------------------ refusals
def test_a_cut_inside_a_group_is_refused_with_the_layer_and_the_way_out(tmp_path: Path) -> None:
    row = ROWS["gptq-4bit-v1-sym"]
    model = decoder(**{**row, "shape": Shape(hidden=256, intermediate=320, heads=2, kv_heads=2, head_dim=128)}).write(tmp_path)
    with pytest.raises(Refused) as refused:
        api.plan(model, target="sm90", act="bf16", dtype="bf16", tp=2)
    found = [f for f in refused.value.findings if f.severity == "error"]
    assert [(f.code, f.layer) for f in found] == [("parallel-cut", "model.layers.0.mlp.down_proj")]
    assert "group of 64" in found[0].message and "--tp" in str(found[0].advice)


def test_a_family_that_is_not_known_is_cut_by_names_with_a_warning(tmp_path: Path) -> None:
    made = sample("ct-int4-sym")
    config = {**made.config, "model_type": "novel"}
    model = Sample(**{**{k: getattr(made, k) for k in Sample.__dataclass_fields__}, "config": config}).write(tmp_path)
    plan = api.plan(model, target="sm90", act="bf16", tp=2, fuse="vllm")
    assert [f.severity for f in plan.findings if f.code == "parallel-unverified"] == ["warning"]
    assert not [f for f in api.plan(model, target="sm90", act="bf16", fuse="vllm").findings if f.code == "parallel-unverified"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"standard": True, "tp": 2}, "leave them out"),
        ({"target": "sm90", "tp": 2, "ep": 3}, "no multiple"),
    ],
)
def test_options_that_contradict_each_other_are_a_usage_error(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(api.UsageError, match=said):
        api.plan(sample("ct-int4-sym").write(tmp_path), **options)


def test_the_plan_says_how_far_each_layer_can_be_cut(tmp_path: Path) -> None:
    from humming_convert.plan.document import plan_document

    plan = plan_document(api.plan(sample("ct-int4-asym", FOUR).write(tmp_path), target="sm90", act="bf16"))
    most = {entry["name"].rpartition(".")[2]: entry["max_tp"] for entry in plan["layers"]}
    # 4 heads; 512 columns in 8 groups of 64; gate and up have 512 rows whose zero points fill words of 8
    assert most == {"qkv_proj": 4, "o_proj": 4, "gate_up_proj": 64, "down_proj": 8}
