"""What the engine hands to the manifest: the results of one layer, and the files of the folder.

Facts: architecture.md 9.5, 9.6. The manifest itself is a plain document (build.py) with a strict schema (schemas/manifest.schema.json).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from humming_convert.standard.lossy import STEPS, Measure, Meter


class Proof(Struct, frozen=True, kw_only=True):
    """What the round trip showed. codes: `equal`, or `changed` by a named step that touches codes; scales: `equal` or `within-cast`.

    max_abs_error: largest change of a scale, a secondary scale or a zero point by a cast.
    """

    codes: str
    scales: str
    max_abs_error: float = 0.0

    @classmethod
    def of(cls, meter: Meter) -> Proof:
        """The words for a layer whose bytes were proven; the meter holds what its lossy steps changed."""
        steps = {m.step for m in meter.found.values()}
        codes = "changed" if any(STEPS[s].codes for s in steps) else "equal"
        casts = [m for m in meter.found.values() if m.tensor != "weight"]
        return cls(codes=codes, scales="within-cast" if casts else "equal", max_abs_error=max((m.max_abs for m in casts), default=0.0))


class LayerResult(Struct, frozen=True, kw_only=True):
    """`digests`: role -> digest of the tensor as it lies in the file.  `lossy`: measured steps."""

    digests: Mapping[str, str]
    lossy: tuple[Measure, ...] = ()
    proof: Proof = field(default_factory=lambda: Proof(codes="equal", scales="equal"))

    def as_dict(self) -> dict[str, Any]:
        return {"digests": dict(self.digests), "lossy": [asdict(m) for m in self.lossy], "proof": asdict(self.proof)}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> LayerResult:
        """The inverse of `as_dict` (the journal keeps results across runs)."""
        return cls(digests=dict(d["digests"]), lossy=tuple(Measure(**m) for m in d["lossy"]), proof=Proof(**d["proof"]))


class FileEntry(Struct, frozen=True, kw_only=True):
    """A file of a folder: plain name, size, digest."""

    name: str
    bytes: int  # the manifest's own key
    digest: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
