"""Names of unquantized tensors, as far as serving has to know them.

In: names in the common files, prefixes of vLLM.  Out: yes or no.  Facts: runtimes.md 3.1; vLLM 0.33 (KV-cache names).
"""

from __future__ import annotations

from collections.abc import Iterable

KV_SCALES = ("k_scale", "v_scale", "kv_scale")


def has_kv_scales(names: Iterable[str]) -> bool:
    return any(name.rpartition(".")[2] in KV_SCALES for name in names)


def tail(prefix: str) -> str:
    """From the word before the first number on: what models call alike, whatever stands in front. Without a number: the last two words."""
    words = prefix.split(".")
    at = next((i for i, word in enumerate(words) if word.isdecimal()), None)
    return ".".join(words[-2:]) if at is None else ".".join(words[max(0, at - 1) :])


def holds_module(names: Iterable[str], prefix: str) -> bool:
    """Is there any tensor of a module? Its name may have another beginning than vLLM's."""
    wanted = tail(prefix)
    return any(f".{wanted}." in f".{name}." for name in names)
