"""A packing step that goes wrong is found by the proof, whatever it is: words, order, padding, scales, zero points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from humming_convert import api
from humming_convert.engine import digest, pack
from humming_convert.layouts import small as layouts_small
from humming_convert.proof import small as proof_small
from humming_convert.proof import stream
from humming_convert.proof.failed import ProofFailed
from tests.samples import sample


def convert(model: Path, out: Path, act: str = "bf16") -> None:
    api.convert(api.plan(model, target="sm90", act=act), out=out, jobs=1)


@pytest.fixture(params=[1, 10**9], ids=["compiled", "reference"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every layer through the compiled passes, or through the numpy reference."""
    monkeypatch.setattr(stream, "SMALL", request.param)
    return "compiled" if request.param == 1 else "reference"


def test_undisturbed_layers_are_proven(path: str, tmp_path: Path) -> None:
    for name in ("gptq-4bit-v2-asym", "gptq-3bit-v1-asym", "awq-4bit-gemm", "ct-int8", "ct-nvfp4", "mxfp4-gpt-oss"):
        convert(sample(name).write(tmp_path), tmp_path / f"{name}-out")


def test_one_wrong_word_is_found(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = sample("gptq-4bit-v2-asym").write(tmp_path)
    if path == "reference":
        real = pack.pack_weight

        def wrong(*args: Any) -> Any:
            words = real(*args)
            words.reshape(-1)[17] ^= 1
            return words

        monkeypatch.setattr(pack, "pack_weight", wrong)
    else:
        monkeypatch.setattr(digest, "library", lambda: None)  # step by step; lists of calls are in tests/engine/test_streaming.py
        real_pack = stream.ExpertStream.pack

        def wrong_pack(self: Any, step: Any, words: Any) -> None:
            real_pack(self, step, words)
            words[17] ^= 1

        monkeypatch.setattr(stream.ExpertStream, "pack", wrong_pack)
    with pytest.raises(ProofFailed) as failed:
        convert(model, tmp_path / "out")
    assert failed.value.finding.tensor is not None
    assert failed.value.finding.tensor.endswith(".weight")


def test_a_pass_and_its_inverse_that_agree_on_a_wrong_place_are_found_by_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both exchange two words: the round trip is whole, the place is wrong (passes_cpu.md 4.7)."""
    model = sample("gptq-4bit-v1-sym").write(tmp_path)
    monkeypatch.setattr(stream, "SMALL", 1)
    monkeypatch.setattr(stream, "SAMPLES", 64)
    monkeypatch.setattr(digest, "library", lambda: None)
    real_pack, real_prove = stream.ExpertStream.pack, stream.passes.prove_block

    def swap(words: Any) -> None:
        words[: len(words) // 2 * 2] = words[: len(words) // 2 * 2].reshape(-1, 2)[:, ::-1].reshape(-1)

    def wrong_pack(self: Any, step: Any, words: Any) -> None:
        real_pack(self, step, words)
        swap(words)

    def wrong_prove(recipe: Any, **given: Any) -> Any:
        given["written"] = given["written"].copy()
        swap(given["written"])
        return real_prove(recipe, **given)

    monkeypatch.setattr(stream.ExpertStream, "pack", wrong_pack)
    monkeypatch.setattr(stream.passes, "prove_block", wrong_prove)
    monkeypatch.setattr(stream.passes, "prove_padding", lambda *_: None)
    with pytest.raises(ProofFailed, match="by address"):
        convert(model, tmp_path / "out")


@pytest.mark.parametrize("whole", [proof_small.WHOLE, 0], ids=["whole", "sampled"])
def test_scales_in_a_wrong_order_are_found(whole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_small, "WHOLE", whole)
    model = sample("ct-nvfp4").write(tmp_path)
    real = stream.REFERENCE.place
    wrong = replace(stream.REFERENCE, place=lambda *args: np.ascontiguousarray(np.roll(real(*args), 1, axis=-1)))
    monkeypatch.setattr(stream, "REFERENCE", wrong)
    with pytest.raises(ProofFailed) as failed:
        convert(model, tmp_path / "out")
    assert failed.value.finding.tensor is not None
    assert failed.value.finding.tensor.endswith(".weight_scale")


@pytest.mark.parametrize("whole", [proof_small.WHOLE, 0], ids=["whole", "sampled"])
def test_zero_points_in_a_wrong_order_are_found(whole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_small, "WHOLE", whole)
    model = sample("gptq-4bit-v2-asym").write(tmp_path)
    real = layouts_small.zero_points.joined
    monkeypatch.setattr(layouts_small.zero_points, "joined", lambda *args: np.ascontiguousarray(np.roll(real(*args), 1, axis=-1)))
    with pytest.raises(ProofFailed) as failed:
        convert(model, tmp_path / "out")
    assert failed.value.finding.tensor is not None
    assert failed.value.finding.tensor.endswith(".zero_point")


def test_a_code_that_no_one_compared_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SMALL", 1)
    monkeypatch.setattr(digest, "library", lambda: None)
    model = sample("gptq-4bit-v1-sym").write(tmp_path)
    monkeypatch.setattr(stream.ExpertStream, "prove", lambda *_: None)
    with pytest.raises(ProofFailed, match="codes were compared"):
        convert(model, tmp_path / "out")
