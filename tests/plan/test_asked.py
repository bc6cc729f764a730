"""What can be asked of the standard form's activations, where no GPU is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import humming_convert as hc
from humming_convert.api import UsageError
from humming_convert.findings import Refused
from tests.samples import sample


def test_an_activation_that_no_target_runs_is_refused_by_layer(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        hc.plan(sample("nvfp4-modelopt").write(tmp_path), standard=True, act="fp8")
    found = [f for f in refused.value.findings if f.code == "act-illegal"]
    assert found and all(f.layer and "groups of 16" in f.message and "bf16" in f.message for f in found)


def test_an_activation_that_some_target_runs_is_written_without_fallback(tmp_path: Path) -> None:
    from humming_convert.manifest.config_json import output_config

    plan = hc.plan(sample("gptq-4bit-v1-sym").write(tmp_path), standard=True, act="fp8")
    section = output_config(plan)["quantization_config"]
    assert (section["a_dtype"], section["allow_fallback"]) == ("float8e4m3", False)


def test_static_input_scales_are_no_part_of_the_standard_form(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="static"):
        hc.plan(sample("gptq-4bit-v1-sym").write(tmp_path), standard=True, act="fp8:static")
