"""A checkpoint folder: which files, which tensors, which config. Bytes, no meaning.

Made by `open_checkpoint` (checkpoint/__init__.py). Facts: formats.md 1.1, 1.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

from humming_convert.checkpoint.arrivals import Arrivals
from humming_convert.checkpoint.tensors import TensorView


class Known(Struct, frozen=True):
    """Of a file that is fixed by where it comes from and need not be there: its digest as in the manifest, and that of its header."""

    digest: str
    header: str


class SourceFile(Struct, frozen=True, kw_only=True):
    """A weight file. `header_bytes`: the 8 length bytes and the header. `known`: None if all that is said of the file is read from it."""

    name: str
    path: Path
    nbytes: int
    header_bytes: int
    known: Known | None = None


class ConfigSection(Struct, frozen=True, kw_only=True):
    """A quantization config and where it stood, e.g. `config.json: quantization_config` or `quantize_config.json`."""

    place: str
    body: Mapping[str, Any]


class Checkpoint(Struct, frozen=True, kw_only=True):
    """What is in a folder.

    config: config.json.  sections: quantization configs found, the primary first (formats.md 1.1).
    tensors: by name, index resolved.  weights: files that hold them.  others: names of the files to copy to the output
    (architecture.md 9.4: no weights, no weight index, no quantizer's side file, not config.json or README.md).
    dtype: the model dtype as a safetensors name, BF16 for float32 models (text_config first), `declared_dtype` as written.
    arrivals: where weight files and `others` need not be there yet; None for a folder.
    """

    folder: Path
    name: str
    revision: str | None
    config: Mapping[str, Any]
    sections: tuple[ConfigSection, ...]
    tensors: Mapping[str, TensorView]
    weights: tuple[SourceFile, ...]
    others: tuple[str, ...]
    dtype: str
    declared_dtype: str | None
    arrivals: Arrivals | None = None
    text_config: Mapping[str, Any] = {}
    """The language model's part of config.json: the nested one where there is one, else the whole. Follows from `config`, found once."""

    def __post_init__(self) -> None:
        force_setattr(self, "text_config", self._text_config())

    def _text_config(self) -> Mapping[str, Any]:
        for key in ("text_config", "llm_config", "language_config"):
            nested = self.config.get(key)
            if isinstance(nested, dict):
                return nested
        thinker = self.config.get("thinker_config")
        if isinstance(thinker, dict) and isinstance(thinker.get("text_config"), dict):
            return dict(thinker["text_config"])
        return self.config

    @property
    def origin(self) -> str:
        """What opens it again: a folder, or a Hub id with its commit."""
        return f"{self.name}@{self.revision}" if self.arrivals is not None else str(self.folder.resolve())

    @property
    def model_type(self) -> str:
        """`model_type` of config.json, "" if it has none."""
        return str(self.config.get("model_type") or "")
