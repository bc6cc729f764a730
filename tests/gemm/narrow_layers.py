"""Layers of few columns, without padding: K is one group of activations, or ends inside what a fast kernel scales at once (64 columns)."""

from __future__ import annotations

from typing import Any

from cases import Spec


class Narrow(Spec):
    """64 rows, 128 columns."""

    columns = 128

    @property
    def shape(self) -> tuple[int, int]:
        return 64, self.columns

    @property
    def where(self) -> dict[str, Any]:
        return super().where | {"pad_k": 32 if self.act == "16" else 64}


class Ragged(Narrow):
    columns = 96


class Long(Narrow):
    """Tiles of K for several blocks."""

    columns = 1184


LONG = {
    "groups of 16 bits": Long(80, False, "BF16", "uint4", "group", 32, 0, "", "int", "none", "16", 1),
    "a channel of 16 bits": Long(80, False, "F16", "uint8", "channel", 0, 0, "", "none", "none", "16", 1),
    "integers": Long(80, False, "BF16", "uint8", "channel", 0, 0, "", "none", "none", "int8", 1),
}
NARROW = {
    "one group of activations": Narrow(80, False, "BF16", "uint8", "channel", 0, 0, "", "none", "none", "int8:128", 1),
    "a channel of 96 columns": Ragged(80, False, "BF16", "uint4", "channel", 0, 0, "", "none", "none", "16", 1),
    "groups up to 96 columns": Ragged(80, False, "F16", "uint4", "group", 32, 0, "", "int", "none", "16", 2),
}
