"""Which weight times which activation (layouts.md 10.1 to 10.3)."""

from __future__ import annotations

from typing import Any

import pytest

from humming_convert.standard.forms import InputForm, ScaleForm, WeightForm
from humming_convert.standard.numbers import number
from humming_convert.targets.activations import activation
from humming_convert.targets.configure import configure
from humming_convert.targets.environment import Environment
from humming_convert.targets.fallback import fall_back
from humming_convert.targets.legality import compatible, kernel_warnings, legal_activations
from humming_convert.targets.pair import pair_of
from humming_convert.targets.table import TARGETS, find_target

ENV = Environment()
UNPATCHED = Environment(cubin_patch=False)
FLOATS = ("float4e2m1", "float6e2m3", "float6e3m2", "float8e4m3", "float8e5m2", "float8e3m4")


def form(weight: str, k: int = 0, dtype: str = "bfloat16", zero: Any = "none", kind: Any = None, n: int = 0) -> WeightForm:
    kind = kind or ("group" if k else "channel")
    return WeightForm(number=number(weight), scale=ScaleForm(kind=kind, dtype=dtype, k=k, n=n), zero_point=zero)


def ok(weight: WeightForm, act: str | InputForm, target: str, env: Environment = ENV) -> bool:
    made = activation(act, "BF16") if isinstance(act, str) else act
    return compatible(weight, made, find_target(target), env, "BF16").ok


# activation, target, environment: bits of integers without and with zero points, mantissas of e0m, other floats (layouts.md 10.1)
TYPES = [
    ("bf16", "sm80", ENV, 8, 8, 7, FLOATS),
    ("int8", "sm75", ENV, 8, 7, 7, ()),
    ("int4", "sm75", ENV, 4, 3, 3, ()),
    ("fp8", "sm89", ENV, 5, 4, 4, FLOATS[:5]),
    ("fp8-e5m2", "sm90", ENV, 5, 4, 4, FLOATS[:5]),
    ("fp8", "sm120", ENV, 6, 5, 5, FLOATS),
    ("fp8", "sm120", UNPATCHED, 5, 4, 4, FLOATS[:5]),
    ("e3m4", "sm120", ENV, 6, 5, 5, FLOATS),
    ("e0m3", "sm120", ENV, 3, 3, 3, ("float4e2m1",)),
]


@pytest.mark.parametrize(("act", "target", "env", "plain", "with_zero", "mantissa", "floats"), TYPES)
def test_weight_types_of_an_activation(
    act: str, target: str, env: Environment, plain: int, with_zero: int, mantissa: int, floats: Any
) -> None:
    widths = range(1, 9)
    assert [b for b in widths if ok(form(f"uint{b}"), act, target, env)] == list(range(1, plain + 1))
    assert [b for b in widths if ok(form(f"uint{b}", zero="int"), act, target, env)] == list(range(1, with_zero + 1))
    assert [m for m in range(1, 8) if ok(form(f"float{m + 1}e0m{m}"), act, target, env)] == list(range(1, mantissa + 1))
    assert tuple(f for f in FLOATS if ok(form(f), act, target, env)) == floats


@pytest.mark.parametrize(
    ("act", "first"),
    [("bf16", 80), ("int8", 75), ("int4", 75), ("fp8", 89), ("fp8-e5m2", 89), ("e3m4", 100), ("nvfp4", 100), ("e0m3", 100)],
)
def test_activations_begin_with_an_architecture(act: str, first: int) -> None:
    rows = [t for t in TARGETS if ok(form("uint2"), act, t.name)]
    assert min(t.sm for t in rows) == first


@pytest.mark.parametrize("target", ["sm89", "sm90", "sm107", "sm110"])
def test_undocumented_types_run_on_four_architectures_only(target: str) -> None:
    for act in ("e3m4", "e0m3"):
        assert not ok(form("uint2"), act, target)
        assert ok(form("uint2"), act, "sm100")
        assert not ok(form("uint2"), act, "sm100", UNPATCHED)


@pytest.mark.parametrize(
    ("weight", "act", "target", "want"),
    [
        (form("uint4", 128), "fp8:64", "sm90", 7),
        (form("uint4", 128), "fp8:128", "sm90", 0),
        (form("float4e2m1", 32, "float8e8m0"), "fp8:128", "sm90", 0),
        (form("float4e2m1", 32, "float8e8m0"), "fp8:128", "sm89", 7),
        (form("float4e2m1", 32, "float8e8m0"), "int8", "sm80", 0),
        (form("float4e2m1", 64, "float8e8m0"), "int8", "sm80", 5),
        (form("uint4", 8), "bf16", "sm90", 8),
        (form("uint4", 16), "int8", "sm90", 8),
        (form("uint4", 32), "int4", "sm80", 8),
        (form("float4e2m1", 16, "float8e5m2"), "nvfp4", "sm120", 8),
        (form("float4e2m1", 16, "float8e8m0"), "nvfp4", "sm120", 8),
        (form("uint8"), "int4", "sm80", 4),
        (form("uint4", 64), "e3m4", "sm100", 6),
        (form("uint4", dtype="float16"), "bf16", "sm90", 1),
    ],
)
def test_the_first_rule_that_says_no_is_named(weight: WeightForm, act: str, target: str, want: int) -> None:
    verdict = compatible(weight, activation(act, "BF16"), find_target(target), ENV, "BF16")
    assert verdict.rule == want, verdict
    assert bool(verdict.reason) is (want != 0)


def test_legal_activations_are_names_that_can_be_asked_for() -> None:
    legal = legal_activations(form("uint4", 128), find_target("sm90"), ENV, "BF16")
    assert legal[0] == "bf16" and {"fp8", "int8", "int4", "fp8:128", "int8:static"} <= set(legal)
    assert not {"fp16", "mxfp8", "nvfp4", "e3m4"} & set(legal)


def test_bf16_has_nothing_legal_below_sm80_but_integers() -> None:
    legal = legal_activations(form("uint4", 128), find_target("t4"), ENV, "BF16")
    assert "bf16" not in legal and "int8" in legal


@pytest.mark.parametrize(
    ("weight", "act", "target", "allowed", "want"),
    [
        (form("uint4", 128), "bf16", "sm90", True, "bf16"),
        (form("uint4"), "fp8", "sm90", True, "fp8"),
        (form("uint4", 128), "fp8", "sm90", True, "bf16"),  # groups: weight only
        (form("uint4", 128), "fp8", "sm90", False, "fp8"),
        (form("uint4"), "int4", "sm90", True, "int8"),  # int4 is slow from Hopper on
        (form("uint4"), "int4", "sm89", True, "int4"),
        (form("uint8", zero="int"), "fp8", "sm90", True, "bf16"),
        (form("uint4"), "fp8", "sm100", True, "bf16"),  # everything below 16 bits is slow
        (form("uint4"), "fp8", "sm80", True, "int8"),
    ],
)
def test_fall_back_ends_with_what_the_serving_caller_takes(weight: WeightForm, act: str, target: str, allowed: bool, want: str) -> None:
    choice = fall_back(weight, activation(act, "BF16"), find_target(target), ENV, "BF16", allowed=allowed)
    assert choice.input == activation(want, "BF16")
    assert bool(choice.reason) is (want != act)


def test_nothing_to_fall_back_to_is_said() -> None:
    choice = fall_back(form("uint8", 8), activation("fp8", "BF16"), find_target("sm90"), ENV, "BF16")
    assert choice.input is None and choice.reason


def test_what_the_kernel_refuses_later_is_a_warning() -> None:
    pair = configure(pair_of(form("float4e2m1", 16, "float8e8m0"), activation("fp8", "BF16"), find_target("sm90"), ENV, "BF16"))
    (finding,) = kernel_warnings(pair)
    assert finding.severity == "warning" and "16" in finding.message
    clean = configure(pair_of(form("uint4", 128), activation("bf16", "BF16"), find_target("sm90"), ENV, "BF16"))
    assert kernel_warnings(clean) == ()
