"""Which tuning a loaded layer takes: that of the folder's tuning file where it was measured on this GPU with these kernels, else the heuristics'.

In: a folder, a GPU.  Out: Tunings, which say in words what is used and why; nothing about a tuning file makes loading fail.
A tuning of a file is taken only if it is one of the family's own candidates, so that no file makes a kernel that this version does not know.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from humming_convert.findings import Findings, Refused
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.families import ByRows, Choice, Family, Fixed, Tuned, at_rows
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.nvrtc import architecture
from humming_convert.gemm.source import templates_digest
from humming_convert.gemm.tuning import Tuning
from humming_convert.manifest.digests import canonical, digest
from humming_convert.manifest.tuning import TunedDevice, TunedLayer, TuningFile, file_name, read

LOG = logging.getLogger("humming_convert")
OPEN = 4  # the open range is measured at so many times the last bound


def key_of(layer: Layer, compute: Compute) -> str:
    """Of all that kernels are compiled for, apart from the task and the type of results. compute: fitted."""
    return digest(canonical([asdict(layer), asdict(replace(compute, task="dense", output=layer.half))]))


def families_of(kernels: Family | ByRows) -> tuple[Family, ...]:
    """That multiply a layer's operands."""
    return kernels.families if isinstance(kernels, ByRows) else (kernels,)


def bounds_of(kernels: Family | ByRows) -> tuple[int, ...]:
    """Numbers of rows at which heuristics change their minds."""
    return tuple(sorted({rows for family in families_of(kernels) for rows in family.ROWS}))


def measured_at(kernels: Family | ByRows) -> tuple[int, ...]:
    """Rows that stand for the ranges, in their order: each bound for those up to it, and many for the open one."""
    bounds = bounds_of(kernels)
    return (*bounds, OPEN * bounds[-1])


def offered(kernels: Family | ByRows, layer: Layer, compute: Compute, rows: int, *, beyond: bool) -> tuple[Fixed, ...]:
    """What is worth measuring for so many rows, the heuristics' choice first. beyond: whether it is for any number above."""
    every = dict.fromkeys((at_rows(kernels, rows), *families_of(kernels)))
    found = [Fixed(family, t) for family in every for t in family.candidates(layer, compute, rows)]
    # sums of parts have room for a known number of rows alone
    return tuple(f for f in dict.fromkeys(found) if not beyond or f.chosen.parts == 1)


@dataclass
class Tunings:
    """layers: by key.  words: what is used, and why.  idle: there is a file, and nothing of it is used.  ignored: layers whose entries are not
    of this version."""

    words: str
    layers: Mapping[str, TunedLayer] = field(default_factory=dict)
    idle: bool = False
    ignored: list[str] = field(default_factory=list)

    def applied(self, choice: Choice, layer: Layer, compute: Compute) -> Choice:
        """The choice with the file's tunings, or as it is."""
        kernels = choice.kernels
        assert not isinstance(kernels, Tuned)
        fitted = kernels.fitted(layer, compute)
        found = self.layers.get(key_of(layer, fitted))
        if found is None:
            return choice
        tuned = tuned_of(kernels, layer, fitted, found)
        if tuned is None:
            self.ignored.append(found.name)
            LOG.warning("%s: its tunings are none that this version would measure; heuristics choose its kernels", found.name)
            return choice
        return replace(choice, kernels=tuned)


def tuned_of(kernels: Family | ByRows, layer: Layer, compute: Compute, found: TunedLayer) -> Tuned | None:
    """None where the file has ranges or tunings that are none of this version's."""
    if tuple(r.up_to for r in found.ranges) != (*bounds_of(kernels), None):
        return None
    chosen: list[Fixed] = []
    for rows, r in zip(measured_at(kernels), found.ranges, strict=True):
        every = {
            (f.NAME, tuple(sorted(asdict(f.chosen).items()))): f for f in offered(kernels, layer, compute, rows, beyond=r.up_to is None)
        }
        fixed = every.get((r.family, tuple(sorted(r.tuning.items()))))
        if fixed is None:
            return None
        chosen.append(fixed)
    return Tuned(kernels, tuple(zip(bounds_of(kernels), chosen[:-1], strict=True)), chosen[-1])


def tuning_file(folder: Path, sm: int) -> TuningFile | None:
    """The folder's file for a GPU of `sm`. ValueError if it is damaged."""
    path = folder / file_name(architecture(sm))
    return read(path) if path.exists() else None


def tunings_of(folder: Path, name: str, sm: int) -> Tunings:
    """For the GPU of that name."""
    try:
        file = tuning_file(folder, sm)
    except (OSError, ValueError) as error:
        return Tunings(
            f"heuristics: {file_name(architecture(sm))} is not readable ({error}); `humming-convert tune OUT` makes it again", idle=True
        )
    if file is None:
        return Tunings("heuristics: not tuned on this kind of GPU")
    found = file.device(name)
    if found is None:
        return Tunings(f"heuristics: tuned on {', '.join(d.name for d in file.devices)}, this is {name}", idle=True)
    if (reason := why_not(found, sm)) is not None:
        return Tunings(f"heuristics: {reason}", idle=True)
    return Tunings(f"tuned on {found.name} with NVRTC {found.compiler}", {x.key: x for x in found.layers})


def every_tuning(folder: Path, sm: int) -> list[Tunings]:
    """Of every GPU of `sm` that the folder was tuned on, with these kernels. Refused if the file is damaged."""
    try:
        file = tuning_file(folder, sm)
    except ValueError as error:
        findings = Findings()
        advice = "`humming-convert tune OUT` on the GPU makes it again, or remove it"
        findings.error("tuning-damaged", str(error), file=file_name(architecture(sm)), advice=advice)
        raise Refused(findings) from None
    found = [] if file is None else [d for d in file.devices if why_not(d, sm) is None]
    return [tunings_of(folder, d.name, sm) for d in found]


def why_not(found: TunedDevice, sm: int) -> str | None:
    """The reason against an entry's tunings on a GPU of its name."""
    if found.sm != sm:
        return f"tuned on a {found.name} of sm_{found.sm}, this is of sm_{sm}"
    if found.templates != templates_digest():
        return "tuned with kernels of another version; `humming-convert tune OUT` measures these"
    return None


def fields_of(tuning: Tuning) -> dict[str, int]:
    """As a file has them."""
    return {name: int(value) for name, value in asdict(tuning).items()}
