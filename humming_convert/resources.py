"""Where the CUDA templates and the JSON Schemas are: inside an installed wheel, or at the top of a checkout (editable install).

Out: paths of folders.  Facts: architecture.md 2; pyproject.toml puts the folders into the wheel under these names.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def _folder(packaged: str, checkout: str) -> Path:
    """The folder of the wheel if this is an installed wheel, else the one beside the package."""
    inside = PACKAGE / packaged
    return inside if inside.is_dir() else PACKAGE.parent / checkout


def cuda_templates() -> Path:
    """Folder of the CUDA headers and the entry template."""
    return _folder("_cuda_templates", "cuda_templates")


def schemas() -> Path:
    """Folder of the JSON Schemas: `<name>.schema.json`."""
    return _folder("_schemas", "schemas")
