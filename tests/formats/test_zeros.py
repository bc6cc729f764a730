"""What is said where the codes do not tell how the zero points of GPTQ are stored, and where labels name another format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.formats.gptq_folders import GPTQ, MODULE, Reading, folder, gptq, matrix, modules, read, reading_of

ASYM = {**GPTQ, "sym": False}


def one(tmp_path: Path, tensors: dict[str, Any], quant: dict[str, Any], **options: Any) -> Reading:
    """A folder of one module."""
    return reading_of(tmp_path, modules(up_proj=tensors), quant, **options)


def test_rule_zeros_unmeasured(tmp_path: Path) -> None:
    m = matrix(8, sym=False, low=1)
    got = one(tmp_path, gptq(m, "v2"), {**ASYM, "bits": 8, "checkpoint_format": "gptq_v2"})
    got.holds(m)
    (f,) = got.findings
    assert (f.severity, f.code, f.tensor) == ("note", "zeros-unmeasured", f"{MODULE}.qzeros") and "--gptq-zeros" in str(f)


@pytest.mark.parametrize("label", ["gptq", "gptq_v2"])
def test_rule_zeros_unproved(tmp_path: Path, label: str) -> None:
    """Codes half a step beside the zero points: the label decides, and that is said."""
    m = matrix(sym=False, low=1)
    half = replace(m, codes=np.minimum(m.codes + (np.arange(128) % 2 == 0), 15).astype(np.uint8))
    got = one(tmp_path, gptq(half, "v2"), {**ASYM, "checkpoint_format": label}, gptq_wrap="field")
    f = got.found("zeros-unproved")
    assert (f.severity, f.tensor) == ("warning", f"{MODULE}.qzeros") and not got.findings.errors
    assert all(word in str(f) for word in (label, "median of 1", "--gptq-zeros"))


CONSTANT = {"gptq_v2": "v1", "gptq_p": "v1", "gptq": "v2", None: "v2"}


@pytest.mark.parametrize("label", CONSTANT)
@pytest.mark.parametrize("bits", [4, 8])
def test_the_symmetric_constant_of_the_other_version_is_no_asymmetric_zero_point(tmp_path: Path, label: str | None, bits: int) -> None:
    """sym false and 0x77777777 under gptq_v2: 7 everywhere, or the 8 of a symmetric v1 file."""
    m = matrix(bits)
    path = folder(tmp_path, modules(up_proj=gptq(m, CONSTANT[label])), {**ASYM, "bits": bits, "checkpoint_format": label})
    f = read(path).found("zeros-label")
    assert (f.severity, f.tensor) == ("error", f"{MODULE}.qzeros") and "--gptq-zeros" in str(f) and CONSTANT[label] in f.message
    got = read(path, gptq_zeros=CONSTANT[label])
    assert not got.findings.errors and (got.zeros() == 1 << (bits - 1)).all()


@pytest.mark.parametrize(("label", "version"), [("gptq", "v1"), ("gptq_v2", "v2")])
def test_the_symmetric_constant_of_its_own_version_proves_the_label(tmp_path: Path, label: str, version: str) -> None:
    got = one(tmp_path, gptq(matrix(), version), {**ASYM, "checkpoint_format": label})
    assert list(got.findings) == [] and (got.zeros() == 8).all()


def test_rule_zeros_constant(tmp_path: Path) -> None:
    """Other layers are asymmetric indeed, one of them is of a symmetric v1 file."""
    m = matrix(sym=False)
    tensors = modules(up_proj=gptq(m, "v2"), gate_proj=gptq(m, "v2"), down_proj=gptq(matrix(), "v1"))
    got = reading_of(tmp_path, tensors, {**ASYM, "checkpoint_format": "gptq_v2"})
    f = got.found("zeros-constant")
    assert (f.severity, f.count) == ("warning", 1) and "down_proj" in str(f) and not got.findings.errors


@pytest.mark.parametrize(("label", "version"), [("marlin", "v1"), ("marlin", "v2"), ("gptq_p", "v1")])
def test_rule_gptq_format_lies(tmp_path: Path, label: str, version: str) -> None:
    m = matrix()
    got = one(tmp_path, gptq(m, version), {**GPTQ, "checkpoint_format": label})
    f = got.found("gptq-format-lies")
    assert (f.severity, f.layer) == ("warning", MODULE) and label in f.message
    got.holds(m)


def test_widths_without_planes_may_be_called_gptq_p(tmp_path: Path) -> None:
    assert list(one(tmp_path, gptq(matrix(), "v2"), {**GPTQ, "checkpoint_format": "gptq_p"}).findings) == []
