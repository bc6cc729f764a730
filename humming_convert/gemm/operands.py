"""What tensor cores are given, and which codes an operand holds exactly: what operands.cuh and fragments.cuh can make.

In: a layer and its mathematics.  Out: a word of `Operand` (config.cuh), or the reason why there is none.
Facts: layouts.md 5 (places), cuda_templates/operands.cuh (what each operand can hold).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer

# bits, exponent and mantissa bits of activations -> operand; 16-bit ones are themselves
NUMBERS = {(8, 4, 3): "e4m3", (8, 0, 0): "s8", (4, 0, 0): "s4"}
FRACTIONS = {"f16": 10, "bf16": 7}

ROUNDINGS = {
    "none": "operands are exact, sums are float32's",
    "weights": "16-bit operands are a code times its scale, rounded once",
    "sums": "sums of E4M3 over all of K are the tensor cores' own",
}

Reason = tuple[bool, str]
"""Whether it stands against a layer, and what it is."""


def operand_of(layer: Layer, compute: Compute) -> str | None:
    """What is multiplied; None: no operand has such numbers."""
    if layer.act_bits == 16:
        return layer.half
    return NUMBERS.get((layer.act_bits, compute.act_exponent, compute.act_mantissa))


def fitted(layer: Layer, compute: Compute) -> Compute:
    """With the operand that there is."""
    kind = operand_of(layer, compute)
    assert kind is not None
    return replace(compute, operand=kind)


def rounding(layer: Layer, compute: Compute) -> str:
    """Of families that compute with exact operands, whose sums are float32's; ROUNDINGS has the other words."""
    return "none"


def first_of(reasons: Iterable[Reason]) -> str | None:
    return next((reason for against, reason in reasons if against), None)


def of_words(layer: Layer) -> tuple[Reason, ...]:
    """What fragments.cuh makes no registers of."""
    return (
        (layer.place not in ("standard", "packed_k", "flat"), f"no registers of {layer.place} words"),
        (layer.ppu, "rows are in the order of another GPU"),
    )


def of_steps(layer: Layer, compute: Compute) -> tuple[Reason, ...]:
    """What stages_sm80.cuh does not copy or scale in whole steps of 32 bytes of K."""
    step = 256 // layer.act_bits
    return (
        (compute.flush < layer.shape_k and bool(compute.flush < step or compute.flush & (compute.flush - 1)), "groups end inside a step"),
        (layer.k * layer.act_bits // 8 % 16 != 0, "rows of x are not whole 16 bytes"),
    )


def why_not(layer: Layer, kind: str) -> str | None:
    """The reason why operands of this kind do not hold the layer's codes; None: they do."""
    if layer.place == "flat" and not (layer.bits == layer.act_bits == 8 or (kind in ("s8", "s4") and 2 * layer.bits >= layer.act_bits)):
        return f"{layer.bits}-bit codes in rows"
    if layer.place != "flat" and layer.bits >= layer.act_bits:
        return "codes as wide as the activation"
    fits = _integers(layer, kind) if layer.kind == "offset_binary" else _floats(layer, kind)
    return None if fits else f"{kind} operands do not hold these codes"


def _integers(layer: Layer, kind: str) -> bool:
    if kind in ("s8", "s4"):
        # beside a floating zero point codes count from 0
        return layer.map == "none" and (layer.bits < layer.act_bits or (layer.sign_flip and layer.zero == "none"))
    if kind == "e4m3":
        return (layer.map == "midpoint" and layer.bits <= 5) or (layer.map == "zero_point" and layer.bits <= 4)
    return True  # up to 8 bits: as fractions, or one by one


def _floats(layer: Layer, kind: str) -> bool:
    e, m = layer.exponent, layer.mantissa
    if kind == "s8":
        return (e, m) == (2, 1) and layer.interleave == "mode3"
    if kind == "s4":
        return False
    if kind == "e4m3":
        if layer.interleave == "mode2":
            return (e, m, layer.bits) == (2, 1, 4)
        return m <= 4 if e == 0 else e <= 4 and m <= 3 and (layer.special == "none" or layer.bits == 8)
    return m <= FRACTIONS[kind] and e <= 5
