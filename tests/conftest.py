"""What all tests share: where the extra data lies, if it is there, and a quiet terminal.

The tests pass without that data; those that need it are skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def shared_folder() -> Path | None:
    """Real checkpoints and recorded bytes: the folder named by HUMMING_CONVERT_SHARED, else `shared` beside the checkout."""
    named = os.environ.get("HUMMING_CONVERT_SHARED")
    folder = Path(named) if named else ROOT.parent / "shared"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def shared() -> Path:
    folder = shared_folder()
    if folder is None:
        pytest.skip("no shared data (HUMMING_CONVERT_SHARED, or a folder `shared` beside the checkout)")
    return folder
