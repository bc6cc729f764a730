"""What the tests of faults ask for again and again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from humming_convert import api
from humming_convert.hub.failures import HubError
from humming_convert.plan.types import Plan
from tests.hub.models import LAYERS

LAST = f"model-{LAYERS:05}-of-{LAYERS:05}.safetensors"
THIRD = f"model-00003-of-{LAYERS:05}.safetensors"


def planned(name: str = "org/model", **options: Any) -> Plan:
    return api.plan(name, target="sm90", act="bf16", **options)


def weights(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.suffix == ".safetensors"}


def local(model: Path, tmp_path: Path, **options: Any) -> dict[str, bytes]:
    api.convert(api.plan(model, target="sm90", act="bf16", **options), out=tmp_path / "local")
    return weights(tmp_path / "local")


def says(code: str, kind: type[HubError] = HubError, name: str = "org/model") -> HubError:
    with pytest.raises(kind) as failed:
        planned(name)
    assert failed.value.finding.code == code and failed.value.finding.advice
    return failed.value
