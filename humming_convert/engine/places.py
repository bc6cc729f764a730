"""Where an output may stand: never where the run would replace, fill or take away the model that it reads.

In: `--out` and a model's folder and files.  Out: nothing, or Overlaps before anything is written.
Folders are compared by device and inode, so that links, bind mounts and file systems without capitals hide nothing.
Facts: architecture.md 6.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from humming_convert.checkpoint.folder import Checkpoint
from humming_convert.engine.folder import Occupied, aside_of, partial_of, place_of

WAY_OUT = "Name a folder for the output that is neither above nor inside of the model's"
Id = tuple[int, int]  # st_dev, st_ino


class Overlaps(Occupied):
    """`<out>` or `<out>.partial` is, holds or lies inside what must stay as it is."""


def check_apart(out: Path, model: Path, files: Iterable[Path] = (), *, replaced: bool) -> None:
    """files: of the model, where they may be links to elsewhere, as in a snapshot of the Hub's cache.  replaced: what stands at `out` goes.

    Overlaps, with the way out."""
    real = place_of(out)
    if not real.name:
        raise Overlaps(f"--out {out} is the root of a file system, which no output can replace; name a folder in it")
    folder = model.resolve()
    own = _ids([folder])
    homes = {folder, *(f.resolve().parent for f in files)}
    above = {i for home in homes for i in _upwards(home)}
    for place, name in ((real, f"--out {out}"), (partial_of(out), f"{partial_of(out)}, where the run would write,"), (aside_of(real), "")):
        what = None
        if mine := _ids([place]):
            if mine <= own:
                what = "is the model itself"
            elif mine <= above or _holds(place, _ids(homes)):
                what = f"holds files of the model {model}"
        if what is not None:
            raise Overlaps(
                f"{name or aside_of(real)} {what}: the model would be lost. Name a folder for the output that is none of the model's"
            )
    if own & set(_upwards(real)):
        raise Overlaps(f"--out {out} lies inside of the model {model}, whose files stay as they are. {WAY_OUT}")


def check_apart_from(source: Checkpoint, out: Path, *, replaced: bool) -> None:
    """As `check_apart`, of all of a checkpoint's files."""
    files = [*(f.path for f in source.weights), *(source.folder / name for name in ("config.json", *source.others))]
    check_apart(out, source.folder, files, replaced=replaced)


def _ids(paths: Iterable[Path]) -> set[Id]:
    """Of those that are there."""
    found: set[Id] = set()
    for path in paths:
        with contextlib.suppress(OSError):
            state = os.stat(path)
            found.add((state.st_dev, state.st_ino))
    return found


def _upwards(path: Path) -> Iterator[Id]:
    """Of a resolved path and all folders above it."""
    yield from _ids([path, *path.parents])


def _holds(place: Path, wanted: set[Id]) -> bool:
    """Whether one of the folders stands somewhere below, which its own path need not say: it may be mounted in two places."""
    if place.is_symlink():
        return False
    return any(not wanted.isdisjoint(_ids(Path(top, name) for name in inside)) for top, inside, _ in os.walk(place))
