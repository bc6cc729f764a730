"""GPTQ: codes along K in 32-bit words, zero points along N, v1 stores them minus one.

In: one module's tensors and the quantizer's config.  Out: a StandardLayer, or findings.
Facts: formats.md 2, 11 (D1 to D6, D19 to D21), 12. `prepare` looks at all modules together, since v1 or v2 is one answer per checkpoint.
Also reads auto-round exports in the same tensors (2.12).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from msgspec import Struct, field

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Rule
from humming_convert.formats.assemble import FLOATS, Draft
from humming_convert.formats.biases import take_bias
from humming_convert.formats.columns import Groups, at, column_groups, groups_of
from humming_convert.formats.declared import Declared, gptqmodel_version, read_config
from humming_convert.formats.neighbours import check_labels, check_neighbours, check_sections
from humming_convert.formats.source import Module, Source
from humming_convert.formats.zeros import Asymmetric, Verdict, census, decide_undo, decide_version, unpack_zeros
from humming_convert.standard.expr import Cast, Expr, Stored, apply
from humming_convert.standard.forms import ScaleForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.numbers import number

RULES = (
    Rule(204, "gptq-format-lies", "the tensors are of the checkpoint_format that the config names", "warning"),
    Rule(205, "bits-lie", "bits of the config are those of the tensors (else the shapes win)", "warning"),
    Rule(206, "bits-open", "the width of the codes follows from the shapes or from the config"),
    Rule(207, "embedding-quantized", "a quantized embedding is not read: how its rows are packed is not known"),
    Rule(208, "planar-ragged", "split planes hold whole blocks of 32 codes, along K and along N"),
    Rule(234, "question-open", "a question that only the data answers was left open (--headers-only)", "note"),
)

PLANAR_ONLY = (5, 6, 7)  # widths that exist in split planes alone, whatever the label (formats.md 2.4)
EMBEDDINGS = ("embed_tokens", "embeddings", "word_embeddings", "wte", "tok_embeddings")
KINDS = ("gptq", "marlin")
COMPARE = "compare a few outputs with the source model"


class Measured(Struct, frozen=True, kw_only=True):
    """What the shapes of one module say. `planar`: split planes."""

    bits: int
    n: int
    k: int
    groups: Groups
    planar: bool


class Study(Struct, kw_only=True):
    """One module, looked at: its draft with the tensors taken, its measures, and whether it has zero points of its own."""

    draft: Draft
    measured: Measured
    qweight: TensorView
    scales: TensorView
    qzeros: TensorView | None
    sym: bool
    act_order: TensorView | None = None
    kind: str = ""

    def asymmetric(self) -> Asymmetric:
        m = self.measured
        assert self.qzeros is not None
        constant = self.kind if self.kind in ("v1", "v2") else ""
        return Asymmetric(
            layer=self.draft.module.name, qweight=self.qweight, qzeros=self.qzeros, bits=m.bits, n=m.n, k=m.k, constant=constant
        )


class Studied(Struct):
    """All GPTQ modules of a checkpoint that could be read, by name, and the verdict on their zero points."""

    declared: Declared
    studies: dict[str, Study] = field(default_factory=dict)
    verdict: Verdict = Verdict("v1")


# ------------------------------------------------------------------ the method's hook and the reader
def prepare(source: Source, modules: Mapping[str, list[Module]]) -> None:
    """Checks the config against all modules, and answers what is asked once for all: sym or not, v1 or v2."""
    declared = read_config(source)
    check_neighbours(source, modules, declared, KINDS if declared.format != "gemm" else ("awq",))
    _study(source, declared, modules.get("gptq", ()))
    studies: dict[str, Study] = source.shared["gptq"].studies
    _check_format(source, declared, studies)
    if not modules.get("awq") and not modules.get("marlin"):
        check_labels(source, declared, any(not s.sym and not s.measured.planar for s in studies.values()))
        check_sections(source, declared, [(name, s.measured.bits, s.measured.groups.stored or -1) for name, s in studies.items()])


def _check_format(source: Source, declared: Declared, studies: Mapping[str, Study]) -> None:
    """gptq-format-lies. `gptq_p` is right for 2, 4 and 8 bits too, whose planes are plain words, but its zero points are never v1."""
    said = declared.format
    lies = {
        "marlin": ("no Marlin tiles", list(studies.values())),
        "gptq_p": ("the constant that only v1 writes", [s for s in studies.values() if s.sym and s.kind == "v1"]),
    }
    what, found = lies.get(said, ("", []))
    if found:
        source.findings.warning(
            "gptq-format-lies",
            f"checkpoint_format is {said} in {declared.file}, and {len(found)} modules hold {what}; the tensors are followed",
            count=len(found),
            advice="correct checkpoint_format in the config",
            **at(found[0].draft.module, "qweight" if said == "marlin" else "qzeros"),
        )


def read(source: Source, module: Module) -> list[StandardLayer]:
    """One GPTQ module as a standard layer; nothing if it has errors (they are in source.findings)."""
    if "gptq" not in source.shared:
        # the config is of another method; the tensors are GPTQ all the same (formats.md 12.5)
        from humming_convert.formats.registry import kind_of, modules_of

        mine = [m for m in modules_of(source.checkpoint.tensors).values() if kind_of(m) == "gptq"]
        label = str(source.config.get("checkpoint_format") or "").lower()
        _study(source, Declared(file="config.json", format=label, producer=gptqmodel_version(source.config)), mine)
    studied: Studied = source.shared["gptq"]
    study = studied.studies.get(module.name)
    return [] if study is None else _layer(source, studied, study)


def _study(source: Source, declared: Declared, modules: Sequence[Module]) -> None:
    studied = Studied(declared)
    source.shared["gptq"] = studied
    for module in modules:
        if (study := _look(source, declared, module)) is not None:
            studied.studies[module.name] = study
    _mixed_constants(source, studied)
    asymmetric = [s.asymmetric() for s in studied.studies.values() if not s.sym and not s.measured.planar]
    if source.headers_only and studied.studies:
        source.findings.note(
            "question-open",
            "g_idx and qzeros were not read: act-order, varying zero points of symmetric layers and v1 or v2 are not checked",
            count=len(studied.studies),
        )
    studied.verdict = decide_version(
        asymmetric,
        declared.format,
        declared.file,
        source.options.gptq_zeros,
        None if source.headers_only else source.read,
        source.findings,
    )


# ------------------------------------------------------------------ one module: shapes
def _look(source: Source, declared: Declared, module: Module) -> Study | None:
    """A module's tensors, measures and symmetry; None after an error."""
    d, mine = Draft(source, module, "gptq"), declared.of(module.name)
    if module.name.rpartition(".")[2] in EMBEDDINGS:
        d.error(
            "embedding-quantized",
            "a quantized embedding is not read",
            "qweight",
            advice="quantize again with the embedding left in 16 bits",
        )
        return None
    qweight = d.need("qweight", "I32", why="pack_dtype other than int32 is not read")
    scales = d.need("scales", *FLOATS, "F64")
    symmetric = mine.sym is True
    missing = "an asymmetric layer needs its zero points" if mine.sym is False else "nothing says that the layer is symmetric"
    qzeros = d.take("qzeros", "I32") if symmetric or "qzeros" in module.tensors else d.need("qzeros", "I32", why=missing)
    g_idx = d.take("g_idx", "I32", "I64")
    if not d.ok or qweight is None or scales is None:
        return None
    measured = _measure(d, mine, qweight, scales, qzeros, g_idx)
    if measured is None:
        return None
    take_bias(d, measured.n)
    d.leftovers()
    study = Study(draft=d, measured=measured, qweight=qweight, scales=scales, qzeros=qzeros, sym=mine.sym is not False)
    if not source.headers_only and d.ok:
        if g_idx is not None and g_idx.shape != (0,) and column_groups(source, module, g_idx, measured.groups) is not None:
            study.act_order = g_idx
        _symmetry(source, mine, study)
    return study if d.ok else None


@lru_cache(maxsize=1024)
def _widths(rows: int, n: int, groups: int, zeros: tuple[int, ...] | None, k: int | None) -> tuple[frozenset[int], frozenset[int]]:
    """(widths that the zero points fit, those of them that the rows of qweight fit too). Models have many modules of few shapes."""
    fits = frozenset(b for b in range(2, 9) if zeros is None or zeros == (groups, -(-n * b // 32)))
    return fits, frozenset(b for b in fits if (rows * 32 % b == 0 if k is None else rows == -(-k * b // 32)))


def _measure(
    d: Draft, mine: Declared, qweight: TensorView, scales: TensorView, qzeros: TensorView | None, g_idx: TensorView | None
) -> Measured | None:
    """N from the columns, bits from qzeros and g_idx (the config only where neither says), K from the rows (formats.md 2.1)."""
    for suffix, view in (("qweight", qweight), ("scales", scales), ("qzeros", qzeros)):
        if view is not None and (len(view.shape) != 2 or 0 in view.shape):
            d.bad_shape(suffix, "two dimensions, none of them 0")
    if g_idx is not None and len(g_idx.shape) != 1:
        d.bad_shape("g_idx", "[K], or [0]")
    if not d.ok:
        return None
    (rows, n), groups = qweight.shape, scales.shape[0]
    k = g_idx.shape[0] if g_idx is not None and g_idx.shape[0] else None
    if scales.shape[1] != n:
        d.bad_shape("qweight", f"[.., {scales.shape[1]}]", f"scales are {list(scales.shape)}", advice="one of the two is damaged")
        return None
    fits, by_rows = _widths(rows, n, groups, None if qzeros is None else qzeros.shape, k)
    if not fits:
        want = f"[{groups}, {n} * bits / 32]"
        d.bad_shape("qzeros", want, f"qweight is {list(qweight.shape)}, scales are {list(scales.shape)}")
        return None
    if not by_rows:
        have = ", ".join(f"{s} {list(v.shape)}" for s, v in (("qzeros", qzeros), ("g_idx", g_idx)) if v is not None)
        d.bad_shape("qweight", f"[{'K' if k is None else k} * bits / 32, {n}]", f"no width fits {have}", advice="one of them is damaged")
        return None
    bits = mine.bits if mine.bits in by_rows else next(iter(by_rows)) if len(by_rows) == 1 else None
    if bits is None:
        said = f"bits is {mine.bits} in {mine.file}" if mine.bits else f"{mine.file} gives no bits"
        d.error(
            "bits-open",
            f"the shapes fit codes of {sorted(by_rows)} bits and {said}",
            "qweight",
            advice="put the right bits into the config",
        )
        return None
    if mine.bits is not None and mine.bits != bits:
        d.warning(
            "bits-lie",
            f"bits is {mine.bits} in {mine.file}, the shapes say {bits}; the shapes are taken",
            "qweight",
            advice="correct the config",
        )
    k = rows * 32 // bits if k is None else k
    if k * bits % 32:
        d.error(
            "row-not-whole-words",
            f"K = {k} codes of {bits} bits do not fill whole 32-bit words",
            "qweight",
            advice="no runtime reads such a layer",
        )
        return None
    planar = bits in PLANAR_ONLY or (bits == 3 and mine.format == "gptq_p")
    if planar and (k % 32 or n % 32):
        d.error(
            "planar-ragged",
            f"N {n}, K {k}: split planes of {bits} bits need multiples of 32 in the shape",
            "qweight",
            advice="re-export the layer",
        )
        return None
    found = groups_of(d.source, d.module, "scales", k, groups, mine.group)
    return None if found is None else Measured(bits=bits, n=n, k=k, groups=found, planar=planar)


# ------------------------------------------------------------------ one module: zero points
def _symmetry(source: Source, mine: Declared, study: Study) -> None:
    """D4: constant zero words are symmetric unless the config says otherwise; others are asymmetric whatever it says."""
    d, m, view = study.draft, study.measured, study.qzeros
    if view is None:
        d.warning("zeros-empty", "qzeros are missing; the layer is declared symmetric and read so", "qzeros", advice=COMPARE)
        return
    kind = census(source.read(view), m.bits, m.n, m.planar)
    study.kind = kind
    if kind == "other-layout":
        have, label = ("continuous", "split planes") if m.planar else ("split planes", "continuous")
        d.error(
            "planar-label",
            f"3-bit zero words are {have}, checkpoint_format {mine.format or 'gptq'!r} says {label}",
            "qzeros",
            advice="checkpoint_format gptq_p means split planes, gptq and gptq_v2 continuous codes; correct the label",
        )
        return
    if mine.sym is False:
        study.sym = False
        return
    if kind in ("v1", "v2"):
        study.sym = True
    elif kind == "damaged":
        study.sym = True
        d.warning(
            "zeros-damaged",
            "3-bit zero words of an old faulty conversion; constant, so the layer is symmetric",
            "qzeros",
            advice="export again with GPTQModel 7.7 or later",
        )
    elif kind == "zero" and mine.sym:
        study.sym = True
        d.warning("zeros-empty", "qzeros are all zero; the layer is declared symmetric and read so", "qzeros", advice=COMPARE)
    else:
        study.sym = False
        if mine.sym:
            d.warning(
                "sym-lies",
                f"sym is true in {mine.file} but the zero points vary; the layer is read as asymmetric",
                "qzeros",
                advice="correct sym in the config",
            )


def _mixed_constants(source: Source, studied: Studied) -> None:
    """formats.md 2.3: v1 and v2 constants are both accepted for symmetric layers, a mixture is worth a warning."""
    kinds = {kind: [s for s in studied.studies.values() if s.sym and s.kind == kind] for kind in ("v1", "v2")}
    if kinds["v1"] and kinds["v2"]:
        few = min(kinds.values(), key=len)
        source.findings.warning(
            "zeros-mixed",
            f"symmetric layers store v1 ({len(kinds['v1'])}) and v2 ({len(kinds['v2'])}) constants; both mean the same",
            advice="nothing is wrong in the output; the file was put together from two exports",
            count=len(few),
            **at(few[0].draft.module, "qzeros"),
        )


def _zero_point(source: Source, studied: Studied, study: Study) -> Expr | None:
    """The standard form's zero points [ceil(N*b/32), stored groups]; None after an error."""
    view, m, d = study.qzeros, study.measured, study.draft
    assert view is not None
    words: Expr = Stored(view)
    if m.planar:
        words = apply("zeros_planar", words, params=(m.bits, m.n), shape=view.shape)
    elif studied.verdict.version == "v1":
        full = 0
        if not source.headers_only:
            full = int((unpack_zeros(source.read(view), m.bits, m.n, False) == (1 << m.bits) - 1).sum())
        undo, code, why = decide_undo(m.bits, full, studied.declared.producer, source.options.gptq_wrap)
        if code == "zeros-wrap":
            d.error(
                code,
                f"{full} stored zero points of {(1 << m.bits) - 1} in a v1 file: {why}",
                "qzeros",
                count=full,
                advice="--gptq-wrap word or --gptq-wrap field decides how they are read (word: as GPTQModel writes 2, 4 and 8 bits)",
            )
            return None
        if code == "zeros-wrapped":
            d.warning(
                code,
                f"{full} stored zero points of {(1 << m.bits) - 1} in a v1 file were read by the {undo[:-1]} rule ({why})",
                "qzeros",
                count=full,
                advice="if that is not its writer, --gptq-wrap decides by hand",
            )
        if undo == "words":
            words = apply("zeros_plus_words", words, params=(m.bits,), shape=view.shape)
        else:
            words = apply("zeros_plus_one", words, params=(m.bits, m.n), shape=view.shape)
    return apply("transpose", words, shape=view.shape[::-1])


# ------------------------------------------------------------------ the layer
def scale_expr(scales: Expr) -> tuple[Expr, str]:
    """Scales as they are, F64 rounded to float32 (D23), and Humming's name of their type."""
    if scales.dtype == "F64":
        return Cast(scales, "F32", "scale-cast", "weight_scale"), "float32"
    return scales, FLOATS[scales.dtype]


def scale_form(groups: Groups, dtype: str) -> ScaleForm:
    """Channel, or groups of the standard form."""
    return ScaleForm(kind="group", dtype=dtype, k=groups.size) if groups.size else ScaleForm(kind="channel", dtype=dtype)


def _layer(source: Source, studied: Studied, study: Study) -> list[StandardLayer]:
    d, m = study.draft, study.measured
    scales, dtype = scale_expr(d.scale_floats(study.scales))
    d.tensors["weight_scale"] = m.groups.spread(apply("transpose", scales, shape=scales.shape[::-1]))
    if not study.sym:
        zeros = _zero_point(source, studied, study)
        if zeros is None:
            return []
        d.tensors["zero_point"] = m.groups.spread(zeros)
    if study.act_order is not None:
        d.facts["g_idx"] = study.act_order
    return d.layer(
        weight=study.qweight,
        packing="gptq_planar" if m.planar else "gptq",
        number=number(f"uint{m.bits}"),
        n=m.n,
        k=m.k,
        experts=None,
        scale=scale_form(m.groups, dtype),
        zero_point=not study.sym,
    )
