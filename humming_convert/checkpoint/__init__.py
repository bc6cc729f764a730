"""Checkpoint folders: files, headers, tensors and configs as bytes; no meaning.

In: a folder.  Out: `open_checkpoint` gives a Checkpoint; its tensors are read by a `Read` of `reading`.
Facts: formats.md 1.1, 1.2; the rules are in `rules.RULES`.
"""

from humming_convert.checkpoint.arrivals import Arrivals, Use
from humming_convert.checkpoint.config import Disagreement, disagreements, method_of, normalise_method
from humming_convert.checkpoint.folder import Checkpoint, ConfigSection, SourceFile
from humming_convert.checkpoint.opening import open_checkpoint
from humming_convert.checkpoint.reading import SourceChanged, SourceError, SourceUnreadable, reader, snapshot, source_digest, unchanged
from humming_convert.checkpoint.rules import RULES
from humming_convert.checkpoint.tensors import Read, TensorView

__all__ = [
    "RULES",
    "Arrivals",
    "Checkpoint",
    "ConfigSection",
    "Disagreement",
    "Read",
    "SourceChanged",
    "SourceError",
    "SourceFile",
    "SourceUnreadable",
    "TensorView",
    "Use",
    "disagreements",
    "method_of",
    "normalise_method",
    "open_checkpoint",
    "reader",
    "snapshot",
    "source_digest",
    "unchanged",
]
