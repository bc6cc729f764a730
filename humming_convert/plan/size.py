"""Numbers of bytes for people, alike in what is printed and on pages."""

from __future__ import annotations


def size(nbytes: float) -> str:
    """1.5 GB: decimal units, three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(nbytes) < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"
