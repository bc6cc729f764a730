"""The samples: their packers keep to the worked examples of the formats, their folders are whole and hold what the demo promises."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open

from humming_convert.demo.decode import repacked_codes, stream_codes
from humming_convert.demo.families import Draw
from humming_convert.demo.models import Sample
from humming_convert.demo.pack import awq_words, bit_stream, gptq_words, nibble_bytes
from humming_convert.demo.samples import all_samples

SAMPLES = all_samples()
FAMILIES = {"gptq", "awq", "compressed-tensors", "mxfp4", "nvfp4", "fp8", "humming"}


def hexed(words: NDArray[np.int32]) -> list[str]:
    return [f"{w:08X}" for w in words.view(np.uint32).ravel()]


def test_a_stream_of_4_bits_is_the_example_of_the_formats() -> None:
    assert hexed(bit_stream(np.arange(8, dtype=np.uint8), 4)) == ["76543210"]


def test_a_stream_of_3_bits_crosses_words_as_in_the_example() -> None:
    assert hexed(bit_stream((np.arange(32) % 8).astype(np.uint8), 3)) == ["88FAC688", "C688FAC6", "FAC688FA"]


def test_gptq_words_run_along_k_of_a_column() -> None:
    codes = np.zeros((2, 8), np.uint8)
    codes[1] = np.arange(8)
    assert hexed(gptq_words(codes, 4)) == ["00000000", "76543210"]


def test_awq_words_interleave_eight_columns() -> None:
    assert hexed(awq_words(np.arange(8, dtype=np.uint8).reshape(8, 1))) == ["75316420"]


def test_fp4_bytes_have_even_k_in_the_low_nibble() -> None:
    assert nibble_bytes(np.array([[2, 7]], np.uint8)).tolist() == [[0x72]]


@pytest.mark.parametrize("bits", range(1, 9))
def test_stream_codes_undo_bit_stream(bits: int) -> None:
    codes = Draw(f"stream {bits}").codes(3, 96, 1 << bits)
    assert np.array_equal(stream_codes(bit_stream(codes, bits), bits, 96), codes)


def test_the_first_packed_word_reads_as_the_worked_row_of_the_layouts() -> None:
    """A16 B4 word 0: (0,0) (0,8) (8,0) (8,8) (0,1) (0,9) (8,1) (8,9) from field 0 up (layouts.md 5.4)."""
    words = np.zeros((4, 128 * 8), np.int32)
    words[0, 0] = 0x76543210
    config = {"shape_n": 64, "shape_k": 64, "use_packed_k_layout": False}
    codes = repacked_codes(words[:, :512], config, 4, 16, fused=False)
    places = [(0, 0), (0, 8), (8, 0), (8, 8), (0, 1), (0, 9), (8, 1), (8, 9)]
    assert [int(codes[at]) for at in places] == list(range(8))
    assert np.count_nonzero(codes) == 7


def test_every_family_has_a_sample() -> None:
    assert {s.family for s in SAMPLES} == FAMILIES
    assert len({s.name for s in SAMPLES}) == len(SAMPLES)
    assert all(s.name.startswith(f"{'ct' if s.family == 'compressed-tensors' else s.family}-") for s in SAMPLES)


def test_there_are_experts_apart_and_experts_stacked() -> None:
    experts = [s for s in SAMPLES if any(".experts." in m for m in s.meaning)]
    assert {s.config["model_type"] for s in experts} == {"qwen3_moe", "gpt_oss"}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_n_or_k_is_ragged_against_the_pads(sample: Sample) -> None:
    parts = sample.meaning.values()
    assert any(w.shape[1] % 128 for w in parts) or any(w.shape[0] % 256 for w in parts)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_every_module_takes_many_values_of_both_signs(sample: Sample) -> None:
    for name, weight in sample.meaning.items():
        assert np.isfinite(weight).all() and weight.min() < 0 < weight.max(), name
        # codes run over the whole range of the type; a row has its groups' scales, so values outnumber codes
        assert len(np.unique(weight[0])) >= 6, name


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_a_written_sample_is_a_folder_that_safetensors_reads(sample: Sample, tmp_path: Path) -> None:
    folder = sample.write(tmp_path)
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) == sample.shards
    found: set[str] = set()
    for file in files:
        with safe_open(file, framework="numpy") as opened:
            found |= set(opened.keys())
    assert found == set(sample.tensors)
    assert json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"]


def test_equal_names_draw_equal_numbers() -> None:
    again = all_samples()
    for one, other in zip(SAMPLES, again, strict=True):
        assert all(np.array_equal(one.meaning[m], other.meaning[m]) for m in one.meaning)
