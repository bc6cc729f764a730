"""Rows of the tables of damages that no other test stands for, and that every row names rules and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from humming_convert.formats.damages import DAMAGES, DECISIONS, Row
from tests.formats.folders import BF16, E4M3, MODULE, e4m3_codes, factors, named, reading_of

ROOT = Path(__file__).resolve().parents[2]
TESTS = set(re.findall(r"^def (test_\w+)", "".join(p.read_text() for p in sorted((ROOT / "tests").rglob("test_*.py"))), re.M))
RULED = set(
    re.findall(r'\bRule\(\s*\d+,\s*"([a-z0-9-]+)"', "".join(p.read_text() for p in sorted((ROOT / "humming_convert").rglob("*.py"))))
)
CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}


@pytest.mark.parametrize("row", [*DAMAGES, *DECISIONS], ids=lambda r: f"{r.key}-{r.what[:30]}")
def test_every_row_names_rules_and_tests_that_exist(row: Row) -> None:
    for code in row.codes:
        assert code in RULED, code
        assert f"test_rule_{code.replace('-', '_')}" in TESTS, code
    assert set(row.tests) <= TESTS
    assert row.codes or row.tests or "cannot be seen" in row.answer


def test_rows_are_numbered_without_gaps() -> None:
    assert [r.key for r in DAMAGES] == [str(i) for i in range(1, 66)]
    assert [r.key for r in DECISIONS] == [str(i) for i in range(1, 25)]


def test_matrices_of_conv1d_pass_as_they_are(tmp_path: Path) -> None:
    """GPT-2 stores [K, N] where it is not quantized; such a tensor is copied, whatever its orientation."""
    quantized = {"weight": e4m3_codes().view(E4M3), "weight_scale": factors(32, 1)}
    plain = np.zeros((64, 192), BF16)
    tensors = named(quantized) | {"transformer.h.0.attn.c_attn.weight": plain}
    got = reading_of(tmp_path, {"quant_method": "fp8", "activation_scheme": "dynamic"}, tensors, model_type="gpt2")
    assert got.passed == ("transformer.h.0.attn.c_attn.weight",)


def test_an_already_packed_folder_is_refused(tmp_path: Path) -> None:
    """By its method; and where somebody changed the label, by shapes that are padded and no rows of codes."""
    words = np.zeros((16, 512), np.int32)
    tensors = named({"weight": words, "weight_scale": np.ones((4, 256), BF16)})
    got = reading_of(tmp_path / "a", {"quant_method": "humming_packed"}, tensors)
    assert "source checkpoint" in (got.finding("method-refused").advice or "")
    lying = {"quant_method": "humming", "b_dtype": "uint4", "weight_scale_group_size": 32}
    assert reading_of(tmp_path / "b", lying, tensors).finding("tensor-shape").tensor == f"{MODULE}.weight_scale"
