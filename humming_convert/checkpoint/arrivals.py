"""A source whose weight files may have to be waited for: what the engine knows of a network, which is nothing else.

Made by hub/; a folder on disk has none.  Facts: architecture.md 1 (plan, then run), 9.1 (--stream).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct
from numpy.typing import NDArray

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Finding


class Use(Struct, frozen=True):
    """What a piece of work reads. `copied`: the one stored tensor, where that is all of it."""

    files: frozenset[Path]
    copied: TensorView | None = None


class Arrivals(Protocol):
    """Files come whole or not at all: a path of a weight file leads nowhere until all of the file is there and was checked.

    Every method can be called from any thread. What fails is a SourceError, in the thread that asks.
    """

    streaming: bool
    """Whether a weight file is removed when it is done."""

    def read(self, view: TensorView) -> NDArray[Any]:
        """A `Read` for planning: also of tensors whose file is not there."""

    def begin(self, uses: Sequence[Use], fetched: Callable[[str, int, int], None] | None = None) -> None:
        """Files start to come, in the order of their first use. uses: all the work to come, in about its order.

        fetched: told now and then which files are coming, how many bytes are there and how many there will be, from a thread of its own."""

    def wait(self, use: Use, check: Callable[[], None]) -> None:
        """Returns when the files of a use are there. check: called now and then, to end the waiting by what it raises."""

    def nearest(self, view: TensorView) -> TensorView:
        """Where to copy a tensor from, after `wait`: it may have been put aside when its file was removed."""

    def done(self, use: Use) -> None:
        """A use that was told to `begin` has been made."""

    def unchanged(self) -> list[Finding]:
        """What is no longer as it came, of the files that came and are still there; empty if nothing is."""

    def fetch_rest(self) -> None:
        """Returns when all that is copied beside the weights is there."""

    def end(self) -> None:
        """Nothing more is waited for."""
