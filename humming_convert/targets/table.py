"""The targets: one row a GPU, with every fact that layouts, legality and fall-back read.

`targets` and the docs print from these rows; a new GPU is a new row.
Facts: layouts.md (head), 4.2, 10.3; architecture.md 9.1.
"""

from __future__ import annotations

import difflib
from typing import Literal

from msgspec import Struct

Family = Literal["mma", "wgmma", "umma", "mxmma"]


class Target(Struct, frozen=True, kw_only=True):
    """A GPU. `sm`: 10 * major + minor. `ppu`: a PPU device. `names`: what people call the cards.

    seen: "run" where packed layers ran on the card, "computed" where the bytes follow from the rules and golden vectors alone.
    family: what its tensor cores add (sm div 10: 9 WGMMA, 10 and 11 UMMA, 12 block-scaled MMA).
    umma_int8: UMMA takes int8.  undocumented: e3m4 and e0m3 operands run where cubins are patched.
    slow: activation types that the serving caller avoids ("all": all below 16 bits) (layouts.md 10.3).
    nvrtc: NVRTC compiles for it, so kernels can be built ahead of time.
    """

    name: str
    sm: int
    ppu: bool = False
    names: tuple[str, ...] = ()
    seen: Literal["run", "computed"] = "computed"
    family: Family = "mma"
    umma_int8: bool = False
    undocumented: bool = False
    slow: tuple[str, ...] = ()
    nvrtc: bool = True

    def is_slow(self, act: str, bits: int) -> bool:
        return act in self.slow or (bits < 16 and "all" in self.slow)

    def __str__(self) -> str:
        return self.name


TARGETS: tuple[Target, ...] = (
    Target(name="sm75", sm=75, names=("t4",)),
    Target(name="sm80", sm=80, names=("a100",)),
    Target(name="sm86", sm=86, names=("a10",)),
    Target(name="sm87", sm=87),
    Target(name="sm89", sm=89, names=("l40s", "4090")),
    Target(name="sm90", sm=90, names=("h20", "h100", "h200"), seen="run", family="wgmma", slow=("int4",)),
    Target(name="sm100", sm=100, names=("b200",), family="umma", umma_int8=True, undocumented=True, slow=("all",)),
    Target(name="sm103", sm=103, names=("b300",), family="umma", undocumented=True, slow=("all",)),
    Target(name="sm107", sm=107, family="umma", slow=("all",), nvrtc=False),
    Target(name="sm110", sm=110, family="umma", umma_int8=True, slow=("all",)),
    Target(name="sm120", sm=120, names=("5090",), family="mxmma", undocumented=True, slow=("int4",)),
    Target(name="sm121", sm=121, names=("gb10",), family="mxmma", undocumented=True, slow=("int4",)),
    Target(name="ppu", sm=80, ppu=True, names=("zw810e",), nvrtc=False),
)

_BY_NAME = {name: t for t in TARGETS for name in (t.name, *t.names)}
_BY_DEVICE = {(t.sm, t.ppu): t for t in TARGETS}


def find_target(name: str) -> Target | None:
    """The row of `sm90`, `sm_90`, `h100`, `RTX 4090`, ...; None if there is none such."""
    plain = name.lower().replace("_", "").replace("-", "").replace(" ", "")
    return _BY_NAME.get(plain) or _BY_NAME.get(plain.removeprefix("rtx"))


def target_of(sm: int, ppu: bool = False) -> Target | None:
    """The row of a device."""
    return _BY_DEVICE.get((sm, ppu))


def suggest_targets(name: str) -> tuple[str, ...]:
    """Names close to an unknown one, for messages; all targets if none is close."""
    close = difflib.get_close_matches(name.lower(), list(_BY_NAME), n=3, cutoff=0.6)
    return tuple(close) or tuple(t.name for t in TARGETS)
