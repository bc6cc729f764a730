"""humming-convert: quantized checkpoints to the exact bytes that the Humming GEMM kernels want, on a machine without a GPU.

The public API; everything is imported when it is used. Facts: architecture.md 9.8.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from humming_convert.findings import Finding, Refused

if TYPE_CHECKING:
    from humming_convert import layouts

__version__ = "0.1.0"
__all__ = ["Finding", "Refused", "__version__", "convert", "inspect", "layouts", "load", "plan", "verify"]

_LAZY = {"convert": "api", "inspect": "api", "load": "api", "plan": "api", "verify": "api"}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "layouts":
        return import_module("humming_convert.layouts")
    if name in _LAZY:
        return getattr(import_module(f"humming_convert.{_LAZY[name]}"), name)
    raise AttributeError(name)


class _Package(ModuleType):
    """The import system sets every room as an attribute of the package; the room `plan` must not hide the function `plan`."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _LAZY and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
