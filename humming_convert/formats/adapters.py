"""LoRA and EoRA tensors inside the weight files: corrections that cannot be merged into codes, and without which the model is another.

In: the names of all tensors.  Out: findings.  Facts: formats.md 2.11, 12 row 60.
"""

from __future__ import annotations

from humming_convert.findings import Rule
from humming_convert.formats.source import Source

RULES = (Rule(227, "adapter-inside", "no LoRA or EoRA tensors stand in the weight files"),)

ADAPTERS = frozenset(("lora_A", "lora_B", "lora_a", "lora_b", "svdquant_lora_a", "svdquant_lora_b"))


def refuse_adapters(source: Source) -> None:
    """adapter-inside, one finding a tensor."""
    for name, view in source.checkpoint.tensors.items():
        if not ADAPTERS.isdisjoint(name.split(".")):
            source.findings.error(
                "adapter-inside",
                f"{name} is part of an adapter that cannot be merged into codes",
                layer=name.rpartition(".")[0],
                tensor=name,
                file=view.file.name,
                advice="remove the adapter, or merge it before quantizing",
            )
