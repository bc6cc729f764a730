"""Folders of plans: each its own, gone with its owner, whoever makes and drops others at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from humming_convert.hub.heads import OwnFolder


def test_folders_made_and_dropped_at_once_do_not_take_each_other_away(tmp_path: Path) -> None:
    def some(_: int) -> list[bool]:
        found = []
        for _ in range(40):
            mine = OwnFolder(tmp_path)
            (mine.path / "file").write_bytes(b"x")
            found.append((mine.path / "file").exists())
            del mine
        return found

    with ThreadPoolExecutor(8) as pool:
        assert all(all(x) for x in pool.map(some, range(8)))
    assert not list(tmp_path.glob("plan-*"))
