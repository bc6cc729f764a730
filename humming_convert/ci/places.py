"""Where a finding's file lies, as a program that watches a run names it: a URI relative to where the run was started.

In: the model or the folder as the user named it, and plain file names.  Out: URIs and paths.
Facts: RFC 3986; code scanning takes no scheme but `file`, and relative URIs from the root of the checkout.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from msgspec import Struct

from humming_convert.hub.names import hub_name


class Place(Struct, frozen=True):
    """`base`: a folder, or the name of a model of the Hub. `here`: the working directory, absolute."""

    base: str
    here: Path

    def path(self, file: str | None) -> str:
        """Of a file in the place, or of the place itself: relative if it lies below `here`, or is the Hub's, else absolute."""
        name = None if Path(self.base).exists() else hub_name(self.base)
        if name is not None:
            return f"{name.repo}/{file}" if file else name.repo
        whole = self.here / self.base / (file or "")
        return str(whole.relative_to(self.here)) if whole.is_relative_to(self.here) and ".." not in whole.parts else str(whole)

    def uri(self, file: str | None) -> str:
        """`path` as a URI; absolute ones have the scheme `file`."""
        path = self.path(file)
        encoded = quote(path.encode("utf-8", "surrogateescape"), safe="/")
        return f"file://{encoded}" if path.startswith("/") else encoded
