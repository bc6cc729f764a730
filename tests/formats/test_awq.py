"""AWQ and Marlin folders of known codes, read to standard layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.formats.gptq_folders import AWQ, GPTQ, MODULE, awq, fast, folder, gemv, marlin, matrix, modules, read, reading_of


def test_gemm_is_read_with_its_zero_points_as_they_are(tmp_path: Path) -> None:
    m = matrix(sym=False, n=40)
    got = reading_of(tmp_path, modules(up_proj=awq(m)), AWQ)
    got.holds(m)
    assert (got.layers[MODULE].family, got.layers[MODULE].form.zero_point) == ("awq", "int")
    assert list(got.findings) == []
    assert got.passed == ()


@pytest.mark.parametrize("keep", [True, False])
def test_without_zero_points_the_middle_is_8(tmp_path: Path, keep: bool) -> None:
    m = matrix()
    tensors = awq(m)
    if not keep:
        del tensors["qzeros"]
    got = reading_of(tmp_path, modules(up_proj=tensors), {**AWQ, "zero_point": False})
    got.holds(m)
    assert got.layers[MODULE].form.zero_point == "none"
    assert list(got.findings) == []


def test_declared_zero_points_stay_even_if_they_are_constant(tmp_path: Path) -> None:
    got = reading_of(tmp_path, modules(up_proj=awq(matrix())), AWQ)
    assert got.layers[MODULE].form.zero_point == "int"


def test_old_keys_and_capitals_are_understood(tmp_path: Path) -> None:
    m = matrix(sym=False)
    path = folder(tmp_path, modules(up_proj=awq(m)), None)
    (path / "quant_config.json").write_text('{"zero_point": true, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}')
    got = read(path)
    got.holds(m)
    assert got.findings.errors == ()


def test_names_not_to_convert_do_not_matter_where_the_tensors_are_plain(tmp_path: Path) -> None:
    tensors = {**modules(up_proj=awq(matrix(sym=False))), "model.layers.0.mlp.gate.weight": np.zeros((4, 4), np.float16)}
    got = reading_of(tmp_path, tensors, {**AWQ, "modules_to_not_convert": ["gate"]})
    assert list(got.findings) == []
    assert got.passed == ("model.layers.0.mlp.gate.weight",)


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_other_widths_of_gptqmodel_are_plain_streams(tmp_path: Path, bits: int) -> None:
    m = matrix(bits, sym=False)
    quant = {**AWQ, "bits": bits, "meta": {"quantizer": ["gptqmodel:7.7.0"]}}
    got = reading_of(tmp_path, modules(up_proj=awq(m)), quant)
    got.holds(m)
    assert [f.code for f in got.findings] == ["unverified-variant"]


@pytest.mark.parametrize(("group", "k", "words"), [(128, 256, 1), (64, 512, 2), (64, 128, 2), (32, 256, 4), (-1, 128, 1)])
def test_gemv_is_read_without_its_padding(tmp_path: Path, group: int, k: int, words: int) -> None:
    m = matrix(k=k, groups=k // group if group > 0 else 1, sym=False)
    got = reading_of(tmp_path, modules(up_proj=gemv(m, words)), {**AWQ, "version": "gemv", "group_size": group})
    assert [str(f) for f in got.findings] == []
    got.holds(m)
    assert got.layers[MODULE].form.scale.k == max(group, 0)


@pytest.mark.parametrize(("group", "k", "words"), [(128, 256, 1), (64, 192, 2)])
def test_gemv_fast_is_read_with_zero_points_from_products(tmp_path: Path, group: int, k: int, words: int) -> None:
    m = matrix(k=k, groups=k // group, sym=False)
    got = reading_of(tmp_path, modules(up_proj=fast(m, words)), {**AWQ, "version": "gemv_fast", "group_size": group})
    assert [str(f) for f in got.findings] == []
    got.holds(m)


@pytest.mark.parametrize(
    ("names", "quant"), [(("qweight", "scales"), {**AWQ, "version": "marlin", "zero_point": False}), (("B", "s"), GPTQ)]
)
@pytest.mark.parametrize(("groups", "k"), [(2, 256), (1, 128)])
def test_marlin_tiles_are_read_under_both_names(
    tmp_path: Path, names: tuple[str, str], quant: dict[str, object], groups: int, k: int
) -> None:
    m = matrix(n=128, k=k, groups=groups)
    tensors = {**marlin(m, names), "workspace": np.zeros(16, np.int32)}
    marked = {**quant, "group_size": 128 if groups > 1 else -1} | ({"is_marlin_format": True} if names[0] == "B" else {})
    marked.pop("checkpoint_format", None)
    got = reading_of(tmp_path, modules(up_proj=tensors), marked)
    got.holds(m)
    assert [f.code for f in got.findings] == ["marlin-deprecated"]
    assert got.passed == ()


def test_awq_tensors_under_a_gptq_config_are_followed_with_a_warning(tmp_path: Path) -> None:
    m = matrix(sym=False)
    got = reading_of(tmp_path, modules(up_proj=awq(m)), {**GPTQ, "sym": False})
    got.holds(m)
    assert got.found("method-lies").severity == "warning"
    assert got.findings.errors == ()


def test_by_headers_alone_awq_is_read_as_declared(tmp_path: Path) -> None:
    path = folder(tmp_path, modules(up_proj=awq(matrix(sym=False))), AWQ)
    got = read(path, headers_only=True)
    assert got.layers[MODULE].form.zero_point == "int"
    assert got.findings.errors == ()


@pytest.mark.parametrize("said", [32, 64, 128, 256, -1])
@pytest.mark.parametrize("kind", ["gemv", "gemv_fast"])
def test_a_group_size_whose_padding_has_the_same_width_is_never_believed(tmp_path: Path, kind: str, said: int) -> None:
    """8 scales a row, of which K / 128 = 2 are real: any number of groups up to 8 would fit the shape."""
    m = matrix(k=256, groups=2, sym=False)
    got = reading_of(tmp_path, modules(up_proj=(gemv if kind == "gemv" else fast)(m, 1)), {**AWQ, "version": kind, "group_size": said})
    if got.layers:
        got.holds(m)
    else:
        assert "awq-gemv-groups" in [f.code for f in got.findings]
