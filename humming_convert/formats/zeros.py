"""Zero points of GPTQ: is a layer symmetric, is its file v1 or v2, and which rule undoes v1.

In: stored words of qzeros, sampled words of qweight, what the config says.  Out: a census per layer, one verdict per checkpoint, findings.
Facts: formats.md 2.3, 11 (D3, D4, D5), 12.10 to 12.15.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from humming_convert.checkpoint.tensors import Read, TensorView
from humming_convert.findings import Findings, Rule
from humming_convert.standard.packing import PACKINGS, stream_pack, stream_unpack
from humming_convert.standard.packing_gptq import planar_pack, planar_unpack

RULES = (
    Rule(209, "zeros-unproved", "the codes prove the label that says how asymmetric zero points are stored", "warning"),
    Rule(210, "zeros-unmeasured", "codes of 8 bits do not tell v1 from v2: the label alone does", "note"),
    Rule(211, "zeros-constant", "no layer declared asymmetric stores the symmetric constant of the other version", "warning"),
    Rule(212, "sym-lies", "the zero points of a layer declared symmetric do not vary (else it is read as asymmetric)", "warning"),
    Rule(213, "zeros-empty", "a symmetric layer has its constant zero points", "warning"),
    Rule(214, "zeros-label", "label and codes agree on how asymmetric zero points are stored (v1: minus one)"),
    Rule(215, "zeros-wrap", "no stored v1 zero point is 2^b-1, unless its writer is known to wrap whole words"),
    Rule(216, "zeros-wrapped", "v1 zero points that wrapped are read by the rule of their writer", "warning"),
    Rule(217, "zeros-damaged", "3-bit zero words are not those of an old faulty conversion", "warning"),
    Rule(218, "zeros-mixed", "all symmetric layers store the same constant", "warning"),
    Rule(219, "planar-label", "3-bit zero words are laid out as the label says: split planes only under gptq_p"),
)

Words = NDArray[Any]
Kind = Literal["v2", "v1", "zero", "damaged", "other-layout", "varies"]

# GPTQModel before its int3 fix wrote v1 with the word constants in reverse order: symmetric files hold these words (formats.md 2.3)
DAMAGED_3 = np.array([0x00000000, 0xB6DB6DB7, 0x49249249], np.uint32)


@lru_cache(maxsize=256)
def _constant(bits: int, n: int, value: int, planar: bool) -> Words:
    """The words of one group whose zero points are all `value`. Models have many layers of few widths."""
    codes = np.full(-(-n // 32) * 32 if planar else n, value & ((1 << bits) - 1), np.uint8)
    return planar_pack(codes, bits) if planar else stream_pack(codes, bits)


def unpack_zeros(words: Words, bits: int, n: int, planar: bool) -> NDArray[np.uint8]:
    """Stored fields [groups, n]."""
    return planar_unpack(words, bits, n) if planar else stream_unpack(words, bits, n)


def census(words: Words, bits: int, n: int, planar: bool) -> Kind:
    """Which constant the words [groups, columns] are, `varies` if none. `other-layout`: a symmetric constant of the other 3-bit layout."""
    mid = 1 << (bits - 1)
    rows = np.ascontiguousarray(words)
    if not rows.flat[0] and not rows.any() and not (planar and bits == 1):
        return "zero"
    for kind, value in (("v2", mid), ("v1", mid - 1)):
        constant = _constant(bits, n, value, planar)
        if (rows[:1] == constant).all() and (rows == constant).all():
            return kind  # type: ignore[return-value]
    if n * bits % 32:  # the unused high bits of a row may hold anything
        fields = unpack_zeros(rows, bits, n, planar)
        for kind, value in (("v2", mid), ("v1", mid - 1)):
            if (fields == value).all():
                return kind  # type: ignore[return-value]
    if bits == 3 and rows.shape[-1] % 3 == 0:
        if not planar and (rows.reshape(-1, 3).view(np.uint32) == DAMAGED_3).all():
            return "damaged"
        if n % 32 == 0 and any((rows == _constant(3, n, value, not planar)).all() for value in (mid, mid - 1)):
            return "other-layout"
    return "varies"


# ------------------------------------------------------------------ v1 or v2
SAMPLE_LAYERS = 96  # layers looked at, spread over the checkpoint
SAMPLE_WORDS = 1 << 18  # words of qweight looked at in each: the mean of 2 million codes moves by less than 0.01


class Asymmetric(Struct, frozen=True, kw_only=True):
    """One asymmetric layer of the continuous layout: what the verdict needs of it. constant: "v1", "v2" if all its zero words are that one."""

    layer: str
    qweight: TensorView
    qzeros: TensorView
    bits: int
    n: int
    k: int
    constant: str = ""


def mean_code(read: Read, layer: Asymmetric) -> float:
    """Mean of the codes, over evenly spaced blocks of rows if there are many."""
    words = read(layer.qweight)
    block = layer.bits if layer.k % 32 == 0 else len(words)  # rows that hold whole codes
    blocks, each = len(words) // block, block * layer.n
    take = np.unique(np.linspace(0, blocks - 1, max(1, min(blocks, SAMPLE_WORDS // each))).astype(np.int64))
    count = 32 if layer.k % 32 == 0 else layer.k
    return float(np.mean([PACKINGS["gptq"](words[i * block : (i + 1) * block], layer.bits, layer.n, count).mean() for i in take]))


def distance(read: Read, layer: Asymmetric) -> float:
    """d: mean code minus mean stored zero point; near 0 for v2, near 1 for v1 (formats.md 2.3)."""
    return mean_code(read, layer) - float(unpack_zeros(read(layer.qzeros), layer.bits, layer.n, False).mean())


Version = Literal["v1", "v2"]


class Verdict(Struct, frozen=True):
    """`version`: how asymmetric zero points are read. `median`: of d, None if it was not asked for or cannot say (8 bits)."""

    version: Version
    median: float | None = None


def decide_version(
    layers: Sequence[Asymmetric], label: str, declared_in: str, option: Literal["auto", "v1", "v2"], read: Read | None, findings: Findings
) -> Verdict:
    """D3. label: checkpoint_format ("" is v1 by definition); read: None if data must not be read. A contradiction is an error."""
    if option != "auto":
        return Verdict(option)
    version: Version = "v2" if label in ("gptq_v2", "gptq_p") else "v1"
    if read is None or not layers:
        return Verdict(version)
    asked = [layer for layer in layers if layer.bits != 8]
    median, measure = _measured(asked, read)
    seen: Version | None = None if median is None or abs(median - 0.5) < 0.2 else "v1" if median > 0.5 else "v2"
    said = f"checkpoint_format {label!r}" if label else "a missing checkpoint_format"
    says = f"{said} in {declared_in} says {version} zero points"
    if seen is not None and seen != version:
        _lies(findings, f"{says}, the codes say {seen}: {measure}", asked)
    elif seen is None:
        _undecided(findings, version, says, layers, measure)
    strange = [layer for layer in layers if layer.constant not in ("", version)]
    if 0 < len(strange) < len(layers):
        _strange(findings, version, says, strange)
    return Verdict(version, median)


def _measured(layers: Sequence[Asymmetric], read: Read) -> tuple[float | None, str]:
    """(median of d, the evidence in words); (None, "") where all codes have 8 bits."""
    if not layers:
        return None, ""
    spread = np.unique(np.linspace(0, len(layers) - 1, min(len(layers), SAMPLE_LAYERS)).astype(np.int64))
    median = float(np.median([distance(read, layers[i]) for i in spread]))
    of = f"median of {len(spread)} asymmetric layers; near 0 for v2, near 1 for v1"
    return median, f"mean code minus mean stored zero point is {median:+.3f} ({of})"


SHIFT = "a wrong choice shifts every weight by one step; --gptq-zeros v1 or --gptq-zeros v2 decides"


def _at(layer: Asymmetric) -> dict[str, Any]:
    return {"layer": layer.layer, "tensor": layer.qzeros.name, "file": layer.qzeros.file.name}


def _lies(findings: Findings, message: str, layers: Sequence[Asymmetric]) -> None:
    findings.error("zeros-label", message, **_at(layers[0]), advice=SHIFT, count=len(layers))


def _undecided(findings: Findings, version: Version, says: str, layers: Sequence[Asymmetric], measure: str) -> None:
    """The codes do not tell. Constant words do: no quantizer of varying weights writes one zero point everywhere, a symmetric one does."""
    constants = {layer.constant for layer in layers}
    if constants == {version}:
        return
    if len(constants) == 1 and "" not in constants:
        other = constants.pop()
        message = f"{says}, and sym is false; every zero word is the constant that {other} writes for symmetric layers" + (
            f", and {measure}, which is undecided" if measure else ""
        )
        _lies(findings, message, layers)
    elif measure:
        findings.warning(
            "zeros-unproved",
            f"{says}, and the codes neither prove nor deny it: {measure}; the label is followed",
            **_at(layers[0]),
            advice=f"compare a few outputs with the source model; {SHIFT}",
            count=len(layers),
        )
    else:
        findings.note(
            "zeros-unmeasured",
            f"{says}; codes of 8 bits do not tell, so the label alone decides",
            **_at(layers[0]),
            advice=SHIFT,
            count=len(layers),
        )


def _strange(findings: Findings, version: Version, says: str, layers: Sequence[Asymmetric]) -> None:
    """Some layers only: others of the checkpoint are asymmetric indeed."""
    findings.warning(
        "zeros-constant",
        f"{says}, and sym is false; the zero words of {layers[0].layer} are the constant that {layers[0].constant} writes for symmetric "
        f"layers; they are read as {version} all the same",
        **_at(layers[0]),
        advice="compare these layers with the source model; the file may be put together from two exports",
        count=len(layers),
    )


# ------------------------------------------------------------------ which rule undoes v1
Undo = Literal["none", "words", "fields"]


def decide_undo(
    bits: int, full: int, producer: tuple[int, ...] | None, option: Literal["auto", "word", "field"]
) -> tuple[Undo, str | None, str | None]:
    """(rule, finding code or None, why) for one v1 layer. full: stored fields of 2^b-1 (D5); producer: GPTQModel's version.

    The rules agree on every word without such a field, but for 3 bits, where old releases of GPTQModel took other constants.
    """
    if option != "auto":
        return ("words" if option == "word" else "fields"), ("zeros-wrapped" if full else None), f"--gptq-wrap {option}"
    if bits == 3 and producer is not None and (0, 9) <= producer < (7, 7):
        return "fields", "zeros-wrap", "releases of GPTQModel before 7.7 wrote 3-bit zero points with and without a fault"
    if not full:
        return "fields", None, None
    if bits in (2, 4, 8) and producer is not None and producer >= (0, 9):
        return "words", "zeros-wrapped", "GPTQModel takes one from the whole word"
    return "fields", "zeros-wrap", "writers disagree on what that means"
