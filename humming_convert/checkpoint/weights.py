"""Which files hold the weights, and from which of them each tensor is read.

In: a folder.  Out: tensors by name and their files; everything that is wrong with index, names and headers, all files at once.
Facts: formats.md 1.2, 11 (D17), 12 (rows 1 to 4, 59).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from humming_convert.checkpoint import rules
from humming_convert.checkpoint.folder import SourceFile
from humming_convert.checkpoint.header import Header, read_header
from humming_convert.checkpoint.rules import broken
from humming_convert.checkpoint.strict_json import read_object
from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Findings, counted

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
NOT_WEIGHTS = ("consolidated*.safetensors", "adapter_model*.safetensors")  # another layout of the same tensors; LoRA
PICKLES = (".bin", ".pt", ".pth")
OTHER_WEIGHTS = {
    ".gguf": "GGUF is not read; use the checkpoint it was made from",
    ".onnx": "ONNX is not read; use the checkpoint it was made from",
    ".h5": "TensorFlow weights are not read; save them as safetensors",
    ".msgpack": "Flax weights are not read; save them as safetensors",
}
NOWHERE = ""
_NUMBERED = re.compile(r"(.*-)([0-9]{5,6})-of-([0-9]{5,6})(\.safetensors)")
_DIGITS = re.compile(r"[0-9]+")


@lru_cache(maxsize=1 << 17)
def natural(name: str) -> str:
    """A sort key in which layer 2 stands before layer 10."""
    return _DIGITS.sub(lambda m: m[0].zfill(20), name)


def read_weights(folder: Path, names: Sequence[str], findings: Findings) -> tuple[dict[str, TensorView], tuple[SourceFile, ...]]:
    """Tensors in natural order of their names, and the files that were read. `names`: the folder's entries.

    Without an error in `findings` the tensors are all that the checkpoint has.
    """
    stored = [n for n in names if n.endswith(".safetensors")]
    if INDEX in names:
        listed = _read_index(folder, findings)
        if listed is not None:
            files = sorted({*listed.values()} - {NOWHERE}, key=natural)
            headers = _read_headers(folder, [f for f in files if f in names], findings)
            _missing_files(listed, [f for f in files if f not in names], findings)
            tensors = _by_index(listed, headers, findings)
            _not_read(stored, files, f"{INDEX} does not name it", findings)
            return _in_order(tensors), _source_files(folder, headers)
    files = _without_index(stored, INDEX in names)
    if not files and INDEX not in names:
        _no_weights(names, stored, findings)
    headers = _read_headers(folder, files, findings)
    if INDEX in names:  # it is broken and said so; the files were looked at to tell everything at once
        return {}, ()
    _gaps(files, findings)
    _not_read(stored, files, f"{SINGLE} is read" if files == [SINGLE] else "an adapter, or another layout of the same weights", findings)
    return _in_order(_by_files(headers, findings)), _source_files(folder, headers)


def expected_weights(folder: Path, names: Sequence[str]) -> list[str]:
    """The files that `read_weights` reads, those of an index also where they are not among `names`. Only the index need be there."""
    listed = _read_index(folder, Findings()) if INDEX in names else None
    if listed is not None:
        return sorted({*listed.values()} - {NOWHERE}, key=natural)
    return _without_index([n for n in names if n.endswith(".safetensors")], INDEX in names)


def _without_index(stored: Iterable[str], broken_index: bool) -> list[str]:
    candidates = [n for n in stored if not any(fnmatch.fnmatchcase(n, p) for p in NOT_WEIGHTS)]
    return [SINGLE] if SINGLE in candidates and not broken_index else sorted(candidates, key=natural)


def _read_index(folder: Path, findings: Findings) -> dict[str, str] | None:
    """tensor -> file, NOWHERE for an entry that names no plain file; None if the index is of no use."""
    index, found = read_object(folder / INDEX)
    findings.extend(found)
    if found and not index:
        return None
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        why = f"{INDEX} has no weight_map of tensor names to file names"
        findings.add(
            broken(rules.INDEX_MAP, why, file=INDEX, advice="fetch or export the index again; with one weight file none is needed")
        )
        return None
    names = {f for f in {f for f in weight_map.values() if type(f) is str} if _plain(f)}
    listed: dict[str, str] = {}
    wrong: dict[str, list[str]] = {}
    for tensor, file in weight_map.items():
        good = type(file) is str and file in names
        listed[tensor] = file if good else NOWHERE
        if not good:
            wrong.setdefault(repr(file), []).append(tensor)
    for shown, tensors in wrong.items():
        why = f"{INDEX} places {_some(tensors)} in {shown[:200]}, which is no plain *.safetensors file name; nothing outside the folder is read"
        advice = "fetch or export the index again"
        findings.add(broken(rules.INDEX_FILE_NAME, why, tensor=tensors[0], file=INDEX, count=len(tensors), advice=advice))
    return listed


def _plain(file: str) -> bool:
    return file.endswith(".safetensors") and not file.startswith(".") and not any(c in file for c in "/\\\0")


def _read_headers(folder: Path, files: Iterable[str], findings: Findings) -> dict[str, Header]:
    headers: dict[str, Header] = {}
    for file in files:
        header = read_header(folder / file)
        if isinstance(header, Header):
            headers[file] = header
        else:
            findings.extend(header)
    return headers


def _missing_files(listed: Mapping[str, str], missing: Iterable[str], findings: Findings) -> None:
    for file in missing:
        wanted = [k for k, f in listed.items() if f == file]
        why = f"{file} is not there; {INDEX} names it for {counted(len(wanted), 'tensor')}"
        findings.add(broken(rules.SHARD_MISSING, why, tensor=wanted[0], file=file, count=len(wanted), advice="fetch the missing file"))


def _by_index(listed: Mapping[str, str], headers: Mapping[str, Header], findings: Findings) -> dict[str, TensorView]:
    tensors: dict[str, TensorView] = {}
    lost: list[tuple[str, str]] = []
    for name, file in listed.items():
        header = headers.get(file)
        if header is None:  # missing or broken, and said so
            continue
        view = header.tensors.get(name)
        if view is None:
            lost.append((name, file))
        else:
            tensors[name] = view
    for name, file in lost:
        elsewhere = [f for f, h in headers.items() if name in h.tensors]
        hint = f"; it stands in {', '.join(elsewhere)}" if elsewhere else ""
        why = f"{INDEX} places it in {file}, which does not hold it{hint}"
        findings.add(broken(rules.TENSOR_MISSING, why, tensor=name, file=file, advice="fetch or export the index and the file again"))
    twice: dict[tuple[str, str], list[str]] = {}
    for file, header in headers.items():
        unlisted = []
        for name in header.tensors:
            chosen = listed.get(name)
            if chosen is None:
                unlisted.append(name)
            elif chosen != file and name in tensors:
                twice.setdefault((chosen, file), []).append(name)
        if unlisted:
            why = f"{_some(unlisted)}: in {file}, but {INDEX} does not name it; not read"
            advice = "if it is needed, export the index again"
            findings.add(broken(rules.TENSOR_UNLISTED, why, tensor=unlisted[0], file=file, count=len(unlisted), advice=advice))
    for (chosen, other), names in twice.items():
        why = f"{_some(names)}: in {chosen} and in {other}; read from {chosen}, which {INDEX} names"
        advice = "if that is the stale one, export the index again"
        findings.add(broken(rules.TENSOR_TWICE, why, tensor=names[0], file=other, count=len(names), advice=advice))
    return tensors


def _by_files(headers: Mapping[str, Header], findings: Findings) -> dict[str, TensorView]:
    tensors: dict[str, TensorView] = {}
    twice: dict[tuple[str, str], list[str]] = {}
    for file, header in headers.items():
        for name, view in header.tensors.items():
            first = tensors.setdefault(name, view)
            if first is not view:
                twice.setdefault((first.file.name, file), []).append(name)
    for (one, other), names in twice.items():
        why = f"{_some(names)}: in {one} and in {other}, and there is no {INDEX} to say which counts"
        advice = "remove the stale file or add the index"
        findings.add(broken(rules.TENSOR_AMBIGUOUS, why, tensor=names[0], file=other, count=len(names), advice=advice))
    return tensors


def _gaps(files: Iterable[str], findings: Findings) -> None:
    """Numbered shards without an index: the names still say how many there are."""
    series: dict[tuple[str, str], set[int]] = {}
    for file in files:
        if m := _NUMBERED.fullmatch(file):
            series.setdefault((m[1], m[3]), set()).add(int(m[2]))
    for (stem, of), there in series.items():
        first = 0 if 0 in there else 1
        if len(there) >= int(of):
            continue
        lost = next(i for i in range(first, int(of) + 1) if i not in there)
        file = f"{stem}{lost:0{len(of)}d}-of-{of}.safetensors"
        why = f"{file} is not there; {len(there)} of {int(of)} numbered files are"
        findings.add(broken(rules.SHARD_MISSING, why, file=file, count=int(of) - len(there), advice="fetch the missing files"))


def _no_weights(names: Sequence[str], stored: Sequence[str], findings: Findings) -> None:
    pickles = [n for n in names if n.lower().endswith(PICKLES)]
    if pickles:
        why = f"the weights are pickle files ({_some(pickles)}), which can run code when opened; they are not read"
        advice = (
            "where you trust them, load them with transformers and save_pretrained(…, safe_serialization=True), then convert that folder"
        )
        findings.add(broken(rules.WEIGHTS_PICKLE, why, file=pickles[0], count=len(pickles), advice=advice))
        return
    advice = next((a for n in names for suffix, a in OTHER_WEIGHTS.items() if n.lower().endswith(suffix)), "fetch the *.safetensors files")
    if stored:
        advice = "adapters must be merged first, consolidated files re-exported in the Hugging Face layout"
    why = f"there is no *.safetensors file with weights{f' ({_some(stored)} hold none that are read)' if stored else ''}"
    findings.add(broken(rules.NO_WEIGHTS, why, file=stored[0] if stored else None, advice=advice))


def _not_read(stored: Iterable[str], read: Iterable[str], why: str, findings: Findings) -> None:
    left = sorted(set(stored) - set(read))
    if left:
        findings.note("weights-not-read", f"{_some(left)} not read: {why}", file=left[0], count=len(left))


def _in_order(tensors: Mapping[str, TensorView]) -> dict[str, TensorView]:
    """Module by module, in natural order."""
    modules: dict[str, str] = {}  # most modules have several tensors

    def key(name: str) -> tuple[str, str]:
        head, _, leaf = name.rpartition(".")
        place = modules.get(head)
        if place is None:
            place = modules[head] = natural(head)
        return place, leaf

    return {name: tensors[name] for name in sorted(tensors, key=key)}


def _source_files(folder: Path, headers: Mapping[str, Header]) -> tuple[SourceFile, ...]:
    return tuple(SourceFile(name=f, path=folder / f, nbytes=h.nbytes, header_bytes=h.header_bytes) for f, h in headers.items())


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
