"""From the tensors of one module to a StandardLayer: looking tensors up, saying what is wrong with them, putting the layer together.

In: a module and what the config says of it (`Described`).  Out: a layer, or findings that name module, tensor, file and shape.
Shared by the readers of this package. Facts: formats.md 1.3, 4, 11 (D20), 12.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd
from typing import Any

from msgspec import Struct

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Rule
from humming_convert.formats.source import Module, Source
from humming_convert.standard.expr import CodeBlock, Expr, Stored, Weight, apply
from humming_convert.standard.forms import InputForm, ScaleForm, WeightForm
from humming_convert.standard.layer import Check, Family, StandardLayer
from humming_convert.standard.numbers import NumberType
from humming_convert.standard.rewrite import even_groups, expand_rows

RULES = (
    Rule(720, "tensor-missing", "a quantized module has every tensor that its kind needs"),
    Rule(721, "tensor-shape", "the shapes of a module's tensors follow from each other"),
    Rule(722, "tensor-dtype", "a tensor has a dtype that its role can have"),
    Rule(723, "tensor-unknown", "no tensor of a quantized module is left over, other than those known to be harmless"),
    Rule(724, "row-not-whole-words", "a row of codes fills whole 32-bit words"),
    Rule(725, "group-too-small", "weights along K that share a scale are at least 16, or 16 after an exact split"),
    Rule(728, "config-invalid", "values of a quantization config are of the type that their key asks for"),
    Rule(729, "entry-regex", "config entries that start with `re:` are regular expressions"),
    Rule(727, "experts-orientation", "stacked experts are known to be stored as [E, N, K]"),
    Rule(726, "group-size-lies", "the config's group size is that of the tensors", "warning"),
)

FLOATS: dict[str, str] = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
BYTES: dict[str, str] = {"F8_E4M3": "float8e4m3", "F8_E5M2": "float8e5m2", "F8_E8M0": "float8e8m0"}
SCALE_CHECKS: dict[str, str] = {"float8e8m0": "e8m0", "float8e4m3": "e4m3-scale", "float8e5m2": "e5m2-scale"}

# D20: passed through beside the layer (KV cache scales), or dropped with it
PASSED = ("k_scale", "v_scale", "q_scale", "output_scale", "k_zero_point", "v_zero_point")
DROPPED = ("g_idx", "weight_g_idx", "workspace", "weight_shape")


class Described(Struct, frozen=True, kw_only=True):
    """What the config says of a module; None where it says nothing.

    known: the config is known to say whether activations are quantized (`declared` None: they are not).  place: the part of the config that says it.  group: 0 for a whole row.  block: rows, columns.  static: a static input scale is asked for.
    one_scale: True for one scale a matrix, False for one a row or a group.
    """

    known: bool = False
    place: str = "config.json"
    bits: int | None = None
    group: int | None = None
    block: tuple[int, int] | None = None
    symmetric: bool | None = None
    static: bool = False
    one_scale: bool | None = None
    declared: InputForm | None = None


def described(source: Source, module: Module) -> Described:
    """What the method's `prepare` left in source.shared["describe"]: a function from a module's name."""
    describe = source.shared.get("describe")
    out = describe(module.name) if describe is not None else Described()
    assert isinstance(out, Described)
    return out


def flat(view: TensorView) -> int:
    """Elements of a tensor."""
    out = 1
    for d in view.shape:
        out *= d
    return out


def same_but_ones(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Equal shapes but for axes of length 1. An equal number of elements alone would let a transposed tensor pass."""
    return [d for d in shape if d != 1] == [d for d in other if d != 1]


class Draft:
    """One module on its way to a StandardLayer. `ok` is False as soon as an error was found."""

    def __init__(self, source: Source, module: Module, family: Family) -> None:
        self.source, self.module, self.ok = source, module, True
        # compressed-tensors keeps its name whatever it holds (architecture.md 9.6: family is the source's)
        self.family: Family = "compressed-tensors" if source.method == "compressed-tensors" else family
        self.used: dict[str, TensorView] = {}
        self.checks: list[Check] = []
        self.config = described(source, module)
        self.tensors: dict[str, Expr] = {}
        self.facts: dict[str, Any] = {}

    # -------------------------------------------------------------- findings
    def _where(self, suffix: str | None) -> dict[str, Any]:
        tensor = f"{self.module.name}.{suffix}" if suffix else None
        # what is missing would stand beside the others of its module
        view = self.module.tensors.get(suffix or "") or next(iter(self.module.tensors.values()), None)
        return {"layer": self.module.name, "tensor": tensor, "file": view.file.name if view else None}

    def error(self, code: str, message: str, suffix: str | None = None, **more: Any) -> None:
        self.ok = False
        self.source.findings.error(code, message, **self._where(suffix), **more)

    def warning(self, code: str, message: str, suffix: str | None = None, **more: Any) -> None:
        self.source.findings.warning(code, message, **self._where(suffix), **more)

    def bad_shape(self, suffix: str, want: str, why: str = "", advice: str = "re-export the layer") -> None:
        """tensor-shape: `want` is the shape that the other tensors ask for."""
        shape = list(self.module.tensors[suffix].shape)
        self.error("tensor-shape", f"{suffix} has the shape {shape}, want {want}{'; ' + why if why else ''}", suffix, advice=advice)

    # -------------------------------------------------------------- tensors
    def take(self, suffix: str, *dtypes: str) -> TensorView | None:
        """The tensor, used up; None if there is none. With dtypes: an error if it has another."""
        view = self.module.tensors.get(suffix)
        if view is None:
            return None
        self.used[suffix] = view
        if 0 in view.shape and suffix not in ("g_idx", "weight_g_idx"):  # an empty g_idx is no order (formats.md 2.7)
            self.bad_shape(suffix, "a tensor with elements")
            return None
        if dtypes and view.dtype not in dtypes:
            self.error("tensor-dtype", f"{suffix} is {view.dtype}, want {' or '.join(dtypes)}", suffix, advice="re-export the layer")
            return None
        return view

    def need(self, suffix: str, *dtypes: str, why: str = "") -> TensorView | None:
        """As `take`, but its absence is an error."""
        if suffix not in self.module.tensors:
            message = f"{suffix} is missing{'; ' + why if why else ''}"
            self.error("tensor-missing", message, suffix, advice="the download may be incomplete, or the layer must be re-exported")
            return None
        return self.take(suffix, *dtypes)

    def check(self, what: str, view: TensorView, params: tuple[int, ...] = (), other: TensorView | None = None) -> None:
        if not self.source.headers_only:  # nobody would run it
            self.checks.append(Check(what=what, view=view, layer=self.module.name, params=params, other=other))

    def bias(self, n: int, experts: int | None, suffix: str = "bias") -> None:
        """`bias` [n], also stored as [1, n] or [n, 1] (formats.md 12 row 58)."""
        view = self.take(suffix, *FLOATS)
        if view is None:
            return
        shape = (n,) if experts is None else (experts, n)
        if not same_but_ones(view.shape, shape):
            self.bad_shape(suffix, str(list(shape)))
            return
        self.check("finite", view)
        self.tensors["bias"] = Stored(view) if view.shape == shape else apply("reshape", Stored(view), params=(shape,), shape=shape)

    def scalar(self, suffix: str, role: str, experts: int | None, *, inverse: bool = False, needed: bool = False, why: str = "") -> None:
        """A factor for the whole matrix, [] or [1] (stacked experts: one each), as float32 [1] ([E, 1]). inverse: stored as a divisor."""
        view = self.need(suffix, *FLOATS, why=why) if needed else self.take(suffix, *FLOATS)
        if view is None:
            return
        if flat(view) != (experts or 1):
            self.bad_shape(suffix, "[] or [1]" if experts is None else f"[{experts}]")
            return
        self.check("positive", view)
        self.tensors[role] = as_scalar(view, experts, inverse)

    def leftovers(self) -> None:
        """D20: what no reader asked for is an error, unless it is known to be harmless."""
        for suffix in self.module.tensors:
            if suffix in self.used or suffix in PASSED:
                continue
            if suffix in DROPPED or "observer" in suffix:
                self.take(suffix)
                continue
            self.error(
                "tensor-unknown",
                f"{suffix} is not known to belong to such a layer",
                suffix,
                advice="dropping it could lose a factor of the weights",
            )

    # -------------------------------------------------------------- scales
    def scale_bytes(self, view: TensorView, dtype: str, codes: TensorView | None = None, bits: int = 4) -> Expr:
        """8-bit scales under their own dtype, whatever integer they were stored as; checked. codes, bits: of the weight beside E8M0 scales."""
        zero_group = dtype == "float8e8m0" and codes is not None and self.source.options.e8m0_nan == "zero-group"
        if zero_group:
            self.check("e8m0-zero-group", view, params=(bits,), other=codes)
        else:
            self.check(SCALE_CHECKS[dtype], view)
        stored = {"float8e8m0": "F8_E8M0", "float8e4m3": "F8_E4M3", "float8e5m2": "F8_E5M2"}[dtype]
        expr: Expr = Stored(view) if view.dtype == stored else apply("view", Stored(view), params=(stored,), dtype=stored, shape=view.shape)
        if zero_group:
            expr = apply("e8m0_zero_nan", expr, dtype=stored, shape=view.shape)
        return expr

    def scale_floats(self, view: TensorView) -> Expr:
        """16- and 32-bit scales: finite, not all zero, not all negative."""
        self.check("finite", view)
        self.check("scale-not-all-zero", view)
        self.check("signs", view)
        return Stored(view)

    def lone_scale(self, suffix: str, view: TensorView, n: int, experts: int | None) -> bool:
        """True if a matrix of several rows has one scale. An error where the config says a scale a row or a group: the others are lost."""
        if flat(view) != (experts or 1) or n == 1:
            return False
        if self.config.one_scale is False:
            self.bad_shape(suffix, "a scale for every row or group", f"{self.config.place} says so; one scale for {n} rows is there")
        return True

    def scale_of_matrix(self, view: TensorView, experts: int | None) -> Expr:
        """The one scale of a matrix, float32 [1] ([E, 1]): finite and above 0 (R701)."""
        self.check("positive", view)
        return as_scalar(view, experts)

    def resolve_group(self, suffix: str, k: int, groups: int, config_group: int | None) -> tuple[str, int] | None:
        """("channel", 0) or ("group", G), G as declared where that fits; the tensors win over the config if it fits no module at all."""
        if groups == 1 and (config_group in (None, 0) or config_group > k):
            return "channel", 0
        if config_group and -(-k // config_group) == groups:
            return self._group(suffix, k, config_group)
        if config_group and k % config_group and k // config_group == groups:
            self.bad_shape(suffix, f"[.., {groups + 1}]", f"the scales of the last {k % config_group} of K = {k} columns are missing")
            return None
        if k % groups:
            self.bad_shape(suffix, f"[.., {-(-k // config_group)}]" if config_group else f"a divisor of K = {k} in the last axis")
            return None
        if config_group is not None:
            if (self.config.place, config_group) in self.source.shared.get("group_fits", ()):
                want = -(-k // config_group) if config_group else 1
                self.bad_shape(
                    suffix, f"[.., {want}]", f"K = {k} and {self.config.place} says groups of {config_group or k}, as other modules have"
                )
                return None
            self.source.findings.warning(
                "group-size-lies",
                f"{self.config.place} says group_size {config_group or -1}, the tensors of its modules have groups of {k // groups}; the tensors are followed",
                file="config.json",
                advice="correct group_size in the config",
            )
        return ("channel", 0) if groups == 1 else self._group(suffix, k, k // groups)

    def _group(self, suffix: str, k: int, group: int) -> tuple[str, int] | None:
        g = gcd(k, group)
        if g & -g < 16:
            self.error(
                "group-too-small",
                f"groups of {group} along K = {k} leave parts of {g & -g}; 16 is the least",
                suffix,
                advice="quantize again with a group size that divides K",
            )
            return None
        return "group", group

    def grouped(
        self, scale: Expr, dtype: str, k: int, kind: str, group: int, zeros: Expr | None = None
    ) -> tuple[ScaleForm, Expr, Expr | None]:
        """Form and exprs of group or channel scales (and zero points); a shorter last group becomes even ones (formats.md 2.6)."""
        if kind == "channel":
            return ScaleForm(kind="channel", dtype=dtype), scale, zeros
        even, g = even_groups(scale, k, group)
        if zeros is not None:
            zeros, _ = even_groups(zeros, k, group)
        return ScaleForm(kind="group", dtype=dtype, k=g), even, zeros

    def blocked(self, scale: Expr, n: int, k: int, block: tuple[int, int]) -> tuple[ScaleForm, Expr] | None:
        """Form and expr of float32 block scales on a ceil grid; rows where the blocks do not fit the matrix (formats.md 4.4)."""
        rows, columns = block
        if n <= rows and k <= columns:  # one block holds the whole matrix: a tensor scale, as the library reads it
            lead = scale.shape[:-2]
            return ScaleForm(kind="tensor", dtype="float32"), apply("reshape", scale, params=((*lead, 1),), shape=(*lead, 1))
        if rows > 1 and n % rows == 0 and k % columns == 0:  # blocks of one row are groups
            return ScaleForm(kind="block", dtype="float32", n=rows, k=columns), scale
        out, g = expand_rows(scale, n, k, rows, columns)
        if g & -g < 16:
            self.error(
                "group-too-small",
                f"blocks of {columns} columns along K = {k} leave parts of {g & -g}; 16 is the least",
                advice="quantize again with blocks that divide K",
            )
            return None
        return ScaleForm(kind="group", dtype="float32", k=g), out

    # -------------------------------------------------------------- stacked experts
    def oriented(self, n: int, k: int, suffix: str = "weight") -> bool:
        """True if the sizes of the model prove that a stacked [E, n, k] is rows by columns; needed where the scales do not (formats.md 10.2)."""
        config = self.source.checkpoint.text_config
        hidden = config.get("hidden_size")
        inner = config.get("moe_intermediate_size") or config.get("intermediate_size")
        leaf = self.module.name.rpartition(".")[2]
        want = None
        if isinstance(hidden, int) and isinstance(inner, int):
            want = {
                "gate_up_proj": (2 * inner, hidden),
                "down_proj": (hidden, inner),
                "gate_proj": (inner, hidden),
                "up_proj": (inner, hidden),
            }.get(leaf)
        if want == (n, k) and n != k:
            return True
        if want == (k, n) and n != k:
            message = f"{suffix} is stored as [E, {n}, {k}], which is [E, K, N] by the model's sizes"
        else:
            message = f"whether {suffix} [E, {n}, {k}] is [E, N, K] or [E, K, N] cannot be told from its scales nor from the model's sizes"
        self.error("experts-orientation", message, suffix, advice="export the experts one by one")
        return False

    # -------------------------------------------------------------- the layer
    def layer(
        self,
        *,
        weight: TensorView,
        packing: str,
        number: NumberType,
        n: int,
        k: int,
        experts: int | None,
        scale: ScaleForm,
        zero_point: bool = False,
        name: str | None = None,
        interleaved: bool = False,
        row_order: Expr | None = None,
        declared: InputForm | None = None,
    ) -> list[StandardLayer]:
        """The finished layer; no layer if there were errors. `name`: where the module holds several (gpt-oss)."""
        if k * number.bits % 32:
            self.error(
                "row-not-whole-words",
                f"K = {k} codes of {number.bits} bits do not fill whole 32-bit words",
                advice="no runtime reads such a layer",
            )
        if not self.ok:
            return []
        name = name or self.module.name
        head, _, leaf = name.rpartition(".")
        parts = (name,) if experts is None else tuple(f"{head}.{e}.{leaf}" for e in range(experts))
        blocks = tuple(
            CodeBlock(
                part=part,
                view=weight,
                packing=packing,
                bits=number.bits,
                n=n,
                k=k,
                index=() if experts is None else (e,),
                row_order=row_order,
            )
            for e, part in enumerate(parts)
        )
        second = "tensor" if "weight_scale_2" in self.tensors else "none"
        form = WeightForm(number=number, scale=scale, scale_2=second, zero_point="int" if zero_point else "none")  # type: ignore[arg-type]
        self.tensors["weight"] = Weight(bits=number.bits, n=n, k=k, experts=experts, blocks=blocks)
        return [
            StandardLayer(
                name=name,
                family=self.family,
                parts=parts,
                n=n,
                k=k,
                experts=experts,
                stack_n=(n,),
                form=form,
                tensors=dict(self.tensors),
                declared=declared if declared is not None else self.config.declared,
                row_order="interleaved" if interleaved else "blocks",
                checks=tuple(self.checks),
                source=tuple(self.used.values()),
                facts=dict(self.facts),
            )
        ]


def unverified(source: Source, what: str) -> None:
    """The warning of a variant for which no real file was at hand (architecture.md 9.7); once for each `what`."""
    source.findings.warning(
        "unverified-variant",
        f"{what}: read from its description only, no real file was at hand",
        file="config.json",
        advice="compare some outputs with the source model",
    )


def as_scalar(view: TensorView, experts: int | None, inverse: bool = False) -> Expr:
    """One factor a matrix as float32 [1] ([E, 1]); inverse: 1 / it, one rounding (formats.md 4.5)."""
    shape = (1,) if experts is None else (experts, 1)
    expr: Expr = Stored(view)
    if view.shape != shape:
        expr = apply("reshape", expr, params=(shape,), shape=shape)
    if inverse:
        return apply("reciprocal", expr, dtype="F32", shape=shape)
    return expr if view.dtype == "F32" else apply("float32", expr, dtype="F32", shape=shape)


def matching(modules: Mapping[str, Iterable[Module]], *kinds: str) -> list[Module]:
    """Modules of the kinds named, of all kinds if none is."""
    return [m for kind, found in modules.items() if not kinds or kind in kinds for m in found]
