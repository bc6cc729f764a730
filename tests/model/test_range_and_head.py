"""Numbers that the model dtype cannot hold, and heads that are not the embedding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Finding, Findings
from humming_convert.model.check import check_tied_head
from humming_convert.model.conform import check_matrix, check_range, conform
from tests.model.making import Memory, checkpoint


@pytest.mark.parametrize(("value", "codes"), [(65504.0, []), (65536.0, ["scale-overflow"])])
def test_rule_scale_overflow(value: float, codes: list[str]) -> None:
    memory, findings = Memory(), Findings()
    layer = memory.layer("x", scale="channel", dtype="F32", value=value)
    check_range(conform(layer, "F16"), memory.read, findings)
    assert [f.code for f in findings.errors] == codes
    assert all(f.tensor == "x.weight_scale" and f.layer == "x" and f.count == 32 for f in findings)


def test_bfloat16_holds_what_float16_does_not() -> None:
    memory, findings = Memory(), Findings()
    check_range(conform(memory.layer("x", scale="channel", dtype="F32", value=1e6), "BF16"), memory.read, findings)
    assert not list(findings)


@pytest.mark.parametrize(("value", "codes"), [(8188.0, []), (8190.0, ["scale-overflow"])])  # times -8: 65504, 65520
def test_no_number_of_a_matrix_that_is_written_in_the_model_dtype_becomes_infinite(value: float, codes: list[str]) -> None:
    memory, findings = Memory(), Findings()
    layer = memory.layer("lm_head", scale="channel", dtype="F32", value=value)
    check_matrix(layer, "F16", memory.read, findings)
    assert [f.code for f in findings.errors] == codes
    assert all(f.layer == "lm_head" and f.tensor == "lm_head.weight_scale" and f.count for f in findings)
    check_matrix(layer, "BF16", memory.read, quiet := Findings())
    assert not list(quiet)


def tied(change: int, tie: bool = True, head: str = "weight") -> list[Finding]:
    memory, findings = Memory(), Findings()
    table = np.arange(64, dtype=np.float16).reshape(8, 8)
    views: dict[str, TensorView] = {
        "model.embed_tokens.weight": memory.store("model.embed_tokens.weight", table),
        f"lm_head.{head}": memory.store(f"lm_head.{head}", table + np.float16(change)),
    }
    source = replace(checkpoint({"model_type": "llama", "tie_word_embeddings": tie}), tensors=views)
    check_tied_head(source, memory.read, findings)
    return list(findings)


def test_rule_tied_head_differs() -> None:
    (f,) = tied(1)
    assert (f.severity, f.code, f.tensor, f.file) == ("warning", "tied-head-differs", "lm_head.weight", Path("lm_head.weight").name)


def test_a_head_that_is_the_embedding_or_not_tied_is_fine() -> None:
    assert tied(0) == [] and tied(1, tie=False) == []


def test_a_quantized_head_is_never_the_embedding() -> None:
    (f,) = tied(0, head="qweight")
    assert f.tensor == "lm_head.qweight"
