"""Programs: lists of calls, made one after the other without the interpreter; kernels, and functions of the C library.

In: calls whose arguments are numbers or places (a base and an offset from it).  Out: a Program, linked for each tensor by giving its bases;
`make` says how many calls were made until one gave another result than wanted.
A worker's window is some fifteen calls of a few tens of microseconds; made from Python they would cost as much again, and two workers
would wait for each other at every one. Facts: architecture.md 5; passes_cpu.md 3.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from humming_convert.passes.aux_values import address
from humming_convert.passes.machine import Kernel, kernels

Ints = NDArray[np.int64]
Bases = NDArray[np.uint16]

FIELDS = 6  # of a call: function, four arguments, the low 32 bits of the result that it is to give
NUMBER, PARAMETERS = 0, 1  # bases: none at all; the program's own parameters of kernels


class At(Struct, frozen=True):
    """`offset` from whatever base number `base` will be."""

    base: int
    offset: int = 0


Argument = int | At


class Program(Struct, frozen=True):
    """calls: int64 [calls, 6] and bases of the same shape, to be added.  parameters: of all kernels, with bases alike.
    held: what owns memory at addresses that are no bases; to be kept as long as the program."""

    calls: Ints
    call_bases: Bases
    parameters: Ints
    parameter_bases: Bases
    held: tuple[object, ...]

    def linked(self, bases: Ints) -> Linked:
        """The calls for these bases (by number; those of NUMBER and PARAMETERS are set here)."""
        bases = bases.copy()
        bases[NUMBER] = 0
        parameters = self.parameters + bases[self.parameter_bases]
        bases[PARAMETERS] = address(parameters)
        return Linked(self.calls + bases[self.call_bases], parameters, self)


class Linked(Struct, frozen=True):
    """Calls that can be made; they point at `parameters` and at what the program holds."""

    calls: Ints
    parameters: Ints
    program: Program


class Listing:
    """A Program that is being written."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, ...]] = []
        self._bases: list[tuple[int, ...]] = []
        self._parameters: list[Ints] = []
        self._parameter_bases: list[Bases] = []
        self._size = 0
        self.held: list[object] = []

    def __len__(self) -> int:
        return len(self._calls)

    def call(self, function: int, *arguments: Argument, want: Argument = 0) -> None:
        row = (function, *arguments, *(0,) * (FIELDS - 2 - len(arguments)), want)
        self._calls.append(tuple(x.offset if isinstance(x, At) else x for x in row))
        self._bases.append(tuple(x.base if isinstance(x, At) else NUMBER for x in row))

    def kernel(self, kernel: Kernel, parameters: Ints, places: Sequence[tuple[int, Argument]], want: int = 0) -> None:
        """A kernel that is to return `want`. places: which of its parameters are to be filled in, with what."""
        values, bases = parameters.copy(), np.zeros(len(parameters), np.uint16)
        for place, x in places:
            values[place], bases[place] = (x.offset, x.base) if isinstance(x, At) else (x, NUMBER)
        self.call(kernel.address, At(PARAMETERS, 8 * self._size), want=want)
        self._parameters.append(values)
        self._parameter_bases.append(bases)
        self._size += len(values)
        self.held.append(kernel)

    def done(self) -> Program:
        return Program(
            np.array(self._calls, np.int64).reshape(-1, FIELDS),
            np.array(self._bases, np.uint16).reshape(-1, FIELDS),
            np.concatenate([np.zeros(0, np.int64), *self._parameters]),
            np.concatenate([np.zeros(0, np.uint16), *self._parameter_bases]),
            tuple(self.held),
        )


def repeated(first: Program, second: Program, last: Program, count: int) -> Program | None:
    """`count` periods one after the other, from three of them; None if they do not grow by the same numbers.

    Offsets and parameters are linear in the period: the first two give the steps, the last shows that these hold.
    """
    programs = (first, second, last)
    for name in ("call_bases", "parameter_bases"):
        if not all(np.array_equal(getattr(first, name), getattr(x, name)) for x in programs):
            return None
    steps = np.arange(count)[:, None]
    parameters = first.parameters + steps * (second.parameters - first.parameters)
    calls = first.calls + steps[:, :, None] * (second.calls - first.calls)
    if not (np.array_equal(parameters[-1], last.parameters) and np.array_equal(calls[-1], last.calls)):
        return None
    # every period has parameters of its own
    calls += (first.call_bases == PARAMETERS) * (steps * 8 * len(first.parameters))[:, :, None]
    return Program(
        calls.reshape(-1, FIELDS),
        np.tile(first.call_bases, (count, 1)),
        parameters.reshape(-1),
        np.tile(first.parameter_bases, count),
        programs,
    )


def joined(programs: Sequence[Program]) -> Program:
    """One after the other."""
    calls, before = [], 0
    for x in programs:
        calls.append(x.calls + (x.call_bases == PARAMETERS) * (8 * before))
        before += len(x.parameters)
    return Program(
        np.concatenate(calls),
        np.concatenate([x.call_bases for x in programs]),
        np.concatenate([x.parameters for x in programs]),
        np.concatenate([x.parameter_bases for x in programs]),
        tuple(programs),
    )


# ---- making them


@lru_cache(maxsize=16)
def function(*names: str) -> int:
    """Address of a function of the C library, under the first of its names that exists."""
    library = ctypes.CDLL(None)
    found = next(x for name in names if (x := getattr(library, name, None)) is not None)
    return int(ctypes.cast(found, ctypes.c_void_p).value or 0)


def make(calls: Ints, first: int = 0) -> tuple[int, int]:
    """Makes calls (rows of a Linked's) from `first` on. Returns (index of the first with another result than wanted, or their count; the
    error number that it left, 0 for none).

    The caller keeps alive what addresses point at. None of the functions may call back into Python.
    """
    assert calls.dtype == np.int64 and calls.ndim == 2 and calls.shape[1] == FIELDS and calls.flags.c_contiguous, calls.shape
    ctypes.set_errno(0)
    done = _caller()(np.array([address(calls), first, len(calls)], np.int64))
    return done, ctypes.get_errno() if done < len(calls) else 0


def equal_bytes(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two contiguous arrays hold the same bytes. (A comparison of numpy makes an array of booleans.)"""
    assert a.flags.c_contiguous and b.flags.c_contiguous, (a.strides, b.strides)
    return a.nbytes == b.nbytes and _memcmp()(address(a), address(b), a.nbytes) == 0


@lru_cache(maxsize=1)
def _memcmp() -> Any:
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return kind(function("memcmp"))


@lru_cache(maxsize=1)
def _caller() -> Kernel:
    def text() -> str:
        from humming_convert.passes.written import CALLER

        return CALLER

    return kernels().get("calls", text, _holds)


def _holds(kernel: Kernel) -> bool:
    """Known calls: a copy, a comparison that holds, one that does not; from the first, the second and the third on."""
    source, target = np.arange(64, dtype=np.uint8), np.zeros(64, np.uint8)
    listing, a, b = Listing(), address(source), address(target)
    listing.call(function("memcpy"), b, a, 64, want=b)
    listing.call(function("memcmp"), b, a, 64)
    listing.call(function("memcmp"), b, a + 1, 8)
    calls = listing.done().calls

    def made(first: int, count: int) -> int:
        return kernel(np.array([address(calls), first, count], np.int64))

    before = made(1, 3)
    return (before, made(0, 2), made(0, 3), made(2, 3)) == (1, 2, 2, 2) and np.array_equal(source, target)
