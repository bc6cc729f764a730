"""Does another version of the library read a packed folder the same way, and would it make the same bytes?

In: an output folder and a version.  Out: what differs, layer by layer; nothing is changed. The source is not needed: what data decided
stands in the stored configuration, and a question that only the other version asks is answered from the packed bytes, restored.
Facts: layouts.md 9, architecture.md 9.1, 9.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert import __version__
from humming_convert.checkpoint.header import read_header
from humming_convert.checkpoint.reading import reader
from humming_convert.checkpoint.tensors import Read
from humming_convert.findings import Findings, Refused, counted
from humming_convert.layouts import Answers, LayerRecipe, PackedLayer, questions, resolve, restore
from humming_convert.layouts.prepare import Standard, answer
from humming_convert.layouts.reread import bytes_differ, reading_differs
from humming_convert.manifest.build import NAME
from humming_convert.manifest.inside import names_outside
from humming_convert.manifest.read import rank_names
from humming_convert.manifest.whole import whole_manifest
from humming_convert.plan.fingerprint import request_of
from humming_convert.plan.types import Request
from humming_convert.standard.forms import InputForm, ScaleForm, WeightForm
from humming_convert.standard.numbers import number
from humming_convert.targets.environment import VERSIONS, Environment, compiler_version

Array = NDArray[Any]
UNKNOWN = "range_fit"  # groups that the packed bytes have moved into range already: what they were before is not in the folder


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCheck:
    """One layer of one rank. reading: what the version reads otherwise; bytes: in what its bytes differ, None if the folder cannot say."""

    layer: str
    rank: str | None
    reading: tuple[str, ...]
    bytes: tuple[str, ...] | None  # the document's own key


@dataclass(slots=True, kw_only=True)
class Recheck:
    """accepted: every layer is read the same way. same_bytes: of all layers, None if it cannot be said of some and none differs."""

    folder: Path
    version: str
    own: str = ""
    layers: list[LayerCheck] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)

    @property
    def accepted(self) -> bool:
        return not self.findings.errors and not any(x.reading for x in self.layers)

    @property
    def same_bytes(self) -> bool | None:
        if any(x.bytes for x in self.layers):
            return False
        return None if any(x.bytes is None for x in self.layers) else True

    def document(self) -> dict[str, Any]:
        return {
            "status": "ok" if self.accepted else "failed",
            "out": str(self.folder),
            "made_for": self.own,
            "humming_version": self.version,
            "accepted": self.accepted,
            "same_bytes": self.same_bytes,
            "layers": [asdict(x) for x in self.layers],
            "findings": [f.as_dict() for f in self.findings],
        }

    def summary(self) -> str:
        same = {True: "would make the same bytes", False: "would make other bytes", None: "may make other bytes"}[self.same_bytes]
        if not self.layers and self.findings.errors:
            return f"{self.folder}: FAILED (no layer could be looked at)"
        read = (
            "reads every layer the same way"
            if self.accepted
            else f"does NOT read {counted(sum(bool(x.reading) for x in self.layers), 'layer')} so"
        )
        return f"{self.folder}: made for humming-kernels {self.own}; {self.version} {read}, and {same}"


def recheck_folder(folder: Path, version: str) -> Recheck:
    """version: of targets.environment.VERSIONS. Damage and differences become findings; a difference of bytes alone is a note."""
    found = Recheck(folder=folder, version=version)
    try:
        manifest = whole_manifest(folder)
        fulls = [whole_manifest(folder, name) for name in rank_names(manifest)] or [manifest]
    except Refused as refused:
        found.findings.extend(refused.findings)
        return found
    found.findings.extend(f for m in (manifest, *fulls) for f in names_outside(folder, m))
    if found.findings.errors:
        return found
    found.own = manifest["humming"]["version"]
    if manifest["format"] == "humming-standard":
        found.findings.note("standard-form", "the standard form holds no decision of a library version: every version reads it")
        return found
    if found.own not in VERSIONS:
        found.findings.error(
            "humming-unknown",
            f"made for humming-kernels {found.own}, whose rules are not known here; known: {', '.join(VERSIONS)}",
            file=NAME,
            advice=f"ask the humming-convert that made it ({manifest['tool']['version']}; this is {__version__}), or convert again",
        )
        return found
    for full in fulls:
        _check(found, folder, full, several=len(fulls) > 1)
    for check in found.layers:
        if check.reading:
            found.findings.error(
                "version-reads-otherwise", "; ".join(check.reading), layer=check.layer, advice=f"convert with --humming-version {version}"
            )
        elif check.bytes:
            found.findings.note("version-makes-other-bytes", "; ".join(check.bytes), layer=check.layer)
    return found


def _check(found: Recheck, folder: Path, manifest: Mapping[str, Any], *, several: bool) -> None:
    request, humming, version = request_of(manifest["options"]), manifest["humming"], found.version
    assert request.target is not None
    own = Environment(
        compiler=compiler_version(humming["cuda_compiler_version"]), cubin_patch=humming["cubin_patch"], humming_version=found.own
    )
    other = replace(own, humming_version=version)
    # decided with the source's data at hand when the folder was made
    same = version in humming["same_bytes"]
    read = reader("mmap")
    rank = "tp{tp_rank} ep{ep_rank}".format(**manifest["parallel"]) if several else None
    for entry in manifest["layers"]:
        reading = reading_differs(entry["config"], entry["flags"], request.target, other)
        differ: Sequence[str] | None = ()
        if not same:
            differ = StoredLayer(folder, entry, request, own, read).bytes_differ(other)
        bytes_ = None if differ is None else tuple(differ)
        found.layers.append(LayerCheck(layer=entry["name"], rank=rank, reading=tuple(reading), bytes=bytes_))


@dataclass
class StoredLayer:
    """A layer as the manifest describes it, with its tensors in the folder."""

    folder: Path
    entry: Mapping[str, Any]
    request: Request
    own: Environment
    read: Read

    @property
    def form(self) -> WeightForm:
        w = self.entry["weight"]
        scale = ScaleForm(kind=w["scale"], dtype=w["scale_dtype"], k=w["group_size"], n=w["group_size_n"])
        return WeightForm(number=number(w["dtype"]), scale=scale, scale_2=w["scale_2"], zero_point=w["zero_point"])

    @property
    def input(self) -> InputForm:
        i = self.entry["input"]
        return InputForm(number=number(i["dtype"]), mode=i["mode"], group=i["group_size"], scale_dtype=i["scale_dtype"])

    def recipe(self, env: Environment, answers: Answers) -> LayerRecipe:
        """Raises Refused where that version refuses."""
        shape, r = self.entry["shape"], self.request
        assert r.target is not None
        return resolve(
            n=shape["n"],
            k=shape["k"],
            experts=shape["experts"],
            stack_n=tuple(shape["stack_n"]),
            form=self.form,
            input=self.input,
            target=r.target,
            env=env,
            param_dtype=r.dtype,
            has_bias=self.entry["config"]["has_bias"],
            answers=answers,
            pad_n=r.pad_n,
            pad_k=r.pad_k,
            entry=r.entry,
            e0m=r.e0m == "auto",
        )

    def asked(self, env: Environment) -> tuple[str, ...]:
        r, parts = self.request, len(self.entry["shape"]["stack_n"])
        assert r.target is not None
        return questions(self.form, self.input, r.target, env, r.entry, param_dtype=r.dtype, parts=parts, e0m=r.e0m == "auto")

    @cached_property
    def candidates(self) -> list[LayerRecipe]:
        """Recipes with the stored configuration: one for each answer of the data that leads to it."""
        names = self.asked(self.own)
        out = []
        for said in product((False, True), repeat=len(names)):
            try:
                recipe = self.recipe(self.own, Answers(**dict(zip(names, said, strict=True))))
            except Refused:
                continue
            if recipe.config.as_dict() == dict(self.entry["config"]):
                out.append(recipe)
        return out

    @cached_property
    def packed(self) -> dict[str, Array]:
        out = {}
        for role, t in self.entry["tensors"].items():
            header = read_header(self.folder / t["file"])
            if isinstance(header, list):
                raise Refused(header)
            out[role] = self.read(header.tensors[t["name"]])
        return out

    def standard(self, recipe: LayerRecipe) -> Standard:
        """The layer restored from its packed tensors."""
        tensors = {role: np.ascontiguousarray(x) for role, x in self.packed.items() if role in recipe.outputs}
        return restore(PackedLayer(recipe=recipe, tensors=tensors))

    def bytes_differ(self, env: Environment) -> list[str] | None:
        """In what the bytes of another version differ; None if what is in the folder does not decide it."""
        said = [self._differ(recipe, env) for recipe in self.candidates]
        known = [x for x in said if x is not None]
        if not said:
            return ["the stored configuration cannot be made again from the manifest"]
        if len(known) < len(said) or len({bool(x) for x in known}) > 1:
            return None
        return known[0]

    def _differ(self, own: LayerRecipe, env: Environment) -> list[str] | None:
        fresh = [name for name in self.asked(env) if getattr(own.answers, name) is None]
        if UNKNOWN in fresh and not any(x["step"] == "e8m0-range" for x in self.entry["lossy"]):
            return None
        found = {f: getattr(own.answers, f) for f in self.asked(env) if f not in fresh}
        if others := tuple(x for x in fresh if x != UNKNOWN):
            found |= {name: getattr(answer(self.standard(own), others), name) for name in others}
        if UNKNOWN in fresh:
            found[UNKNOWN] = True  # groups were moved, and that is what the other version's question is about
        try:
            other = self.recipe(env, Answers(**found))
        except Refused as refused:
            return [f"refused: {refused.findings[0].message}"]
        return bytes_differ(own, other, lambda: self._small(own))

    def _small(self, own: LayerRecipe) -> Mapping[str, Array]:
        return {role: x for role, x in self.standard(own).tensors.items() if role != "weight"}
