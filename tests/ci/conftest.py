"""A place that the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest

from humming_convert.ci.places import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "models" / "m").mkdir(parents=True)
    return Place("models/m", tmp_path)
