"""A manifest of a finished folder as it was published, or why it is none: asked by all who check or load a folder.

In: a folder and a name in it.  Out: the document, or Refused with one error. The files that it lists are looked at elsewhere.
Facts: architecture.md 9.6.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from humming_convert.checkpoint.rules import FILE_UNREADABLE
from humming_convert.findings import Finding, Refused
from humming_convert.manifest.build import FORMAT_VERSION, NAME
from humming_convert.manifest.digests import manifest_digest
from humming_convert.manifest.inside import FETCH, file_inside
from humming_convert.manifest.read import is_newer, read_manifest

FINISHED = "name a folder that `convert` finished"
NEWER = "install a newer humming-convert"


def whole_manifest(folder: Path, name: str = NAME) -> dict[str, Any]:
    """Refused: no-manifest, file-unreadable, manifest-newer, manifest-damaged, name-outside."""
    try:
        manifest = read_manifest(folder, file_inside(folder, name).name)
    except FileNotFoundError:
        _refuse("no-manifest", f"{name} is not there: not a folder that this tool finished", name, FINISHED if name == NAME else FETCH)
    except IsADirectoryError:
        _refuse("no-manifest", f"{name} is a folder", name, FINISHED if name == NAME else FETCH)
    except OSError as error:
        _refuse(FILE_UNREADABLE.code, f"{name} cannot be read: {error.strerror or error}", name, "check its permissions, and the disk")
    except ValueError as error:
        _refuse("manifest-damaged", f"it is not what `convert` writes: {error}", name, FETCH)
    if is_newer(manifest):
        said = f"format version {manifest['format_version']}; version {FORMAT_VERSION} is read"
        _refuse("manifest-newer", said, name, NEWER)
    if manifest_digest(manifest) != manifest["manifest_digest"]:
        _refuse("manifest-damaged", "its digest is not that of its content", name, FETCH)
    return manifest


def _refuse(code: str, message: str, file: str, advice: str) -> NoReturn:
    raise Refused([Finding(severity="error", code=code, message=message, file=file, advice=advice)]) from None
