"""Opening a checkpoint folder: configs, weights and the files that go along.

In: a folder.  Out: a Checkpoint, or None and every error that was found.
Facts: formats.md 1.1, 1.2; architecture.md 9.4 (what is copied). Nothing is read but files of the folder itself; links to files are followed,
since Hub snapshots consist of them; a name inside a file never leads out of the folder, and no sub-folder is entered.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable
from pathlib import Path

from humming_convert.checkpoint import rules
from humming_convert.checkpoint.config import CONFIG, SIDE_FILES, find_sections, missing_config, model_dtype
from humming_convert.checkpoint.folder import Checkpoint
from humming_convert.checkpoint.rules import broken
from humming_convert.checkpoint.strict_json import read_object
from humming_convert.checkpoint.weights import INDEX, OTHER_WEIGHTS, PICKLES, read_weights
from humming_convert.findings import Findings

WEIGHTS = (".safetensors", *PICKLES, *OTHER_WEIGHTS)
READ = (CONFIG, INDEX, *SIDE_FILES)  # beside the weights
REWRITTEN = frozenset((CONFIG, "README.md"))
NOT_COPIED = ("*.index.json", *SIDE_FILES, "humming_manifest*.json")  # the output has its own, or must have none


def open_checkpoint(folder: Path, findings: Findings) -> Checkpoint | None:
    """The checkpoint in `folder`. None if anything is an error; all that can be found wrong is in `findings` then."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        advice = "give the folder that holds config.json and the *.safetensors files"
        findings.add(broken(rules.NOT_A_CHECKPOINT, f"{folder.name or folder} {what}", file=folder.name or None, advice=advice))
        return None
    before = len(findings.errors)
    names = _entries(folder, findings)
    if names is None:
        return None
    config, found = read_object(folder / CONFIG) if CONFIG in names else ({}, [missing_config(folder)])
    findings.extend(found)
    sections = find_sections(folder, config, findings)
    tensors, weights = read_weights(folder, names, findings)
    if not found and len(findings.errors) == before:
        dtype, declared = model_dtype(config, tensors.values(), findings)
        others = _others(folder, names, findings)
        if len(findings.errors) == before:
            name, revision = name_of(folder)
            return Checkpoint(
                folder=folder,
                name=name,
                revision=revision,
                config=config,
                sections=sections,
                tensors=tensors,
                weights=weights,
                others=others,
                dtype=dtype,
                declared_dtype=declared,
            )
    return None


def name_of(folder: Path) -> tuple[str, str | None]:
    """(name, revision): the last part of the path; `org/name` and the commit in a snapshot of the Hub's cache."""
    path = Path(os.path.abspath(folder))  # not resolved: the link's name is the one that the user knows
    cache = path.parent.parent.name
    if path.parent.name == "snapshots" and cache.startswith("models--"):
        return "/".join(cache.split("--")[1:]), path.name
    return os.fsencode(path.name).decode(errors="replace") or "model", None  # it goes into documents, which are UTF-8


def _entries(folder: Path, findings: Findings) -> list[str] | None:
    """The names in the folder, sorted. Names that are not UTF-8 cannot stand in an index, a manifest or a message."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as e:
        findings.add(
            broken(rules.FILE_UNREADABLE, f"the folder cannot be read: {e.strerror or e}", file=folder.name, advice="check its permissions")
        )
        return None
    for name in names:
        if _writable(name):
            continue
        rule, left = (rules.FILE_NAME, "read") if name.endswith(".safetensors") else (rules.FILE_NOT_COPIED, "copied")
        findings.add(broken(rule, f"the file name {name!a} is not UTF-8 or holds control characters; not {left}", advice="rename the file"))
    return [n for n in names if _writable(n)]


def _writable(name: str) -> bool:
    """Whether a name can stand in JSON and in a line of text. The system hands out bytes that are not UTF-8 as lone surrogates."""
    return not any(c < " " or "\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\udfff" for c in name)


def _others(folder: Path, names: Iterable[str], findings: Findings) -> tuple[str, ...]:
    """The files to copy. Sub-folders are left out with a note, hidden ones (.git, .cache) without."""
    files: list[str] = []
    folders: list[str] = []
    for name in names:
        path = folder / name
        if path.is_dir():
            folders += [] if name.startswith(".") else [name]
        elif name in REWRITTEN or name.lower().endswith(WEIGHTS) or any(fnmatch.fnmatchcase(name, p) for p in NOT_COPIED):
            continue
        elif path.is_file():
            files.append(name)
        else:
            why = f"{name} is no regular file, or a link that leads nowhere; not copied"
            findings.add(broken(rules.FILE_NOT_COPIED, why, file=name, advice="fetch it again if it is needed"))
    if folders:
        why = f"sub-folders are not copied: {', '.join(folders[:3])}{f' and {len(folders) - 3} more' if len(folders) > 3 else ''}"
        findings.note("folder-not-copied", why, file=folders[0], count=len(folders))
    return tuple(files)
