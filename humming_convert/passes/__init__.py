"""Compiled passes over words: source packing -> packed words, and back for the proof; never one byte a code.

`pack_block`, `fill_padding`, `prove_block`, `prove_padding` for one expert's words, whole or in `windows`; scans of stored tensors.
`walk`: the same block for a processor with code of its own, which `known_box` proves.
Facts: architecture.md 5, layouts.md 5.
"""

from humming_convert.passes.aux_values import Aux
from humming_convert.passes.blocks import PACKINGS, Mismatch, Walk, is_fast, pack_block, prove_block, slice_block, supported, walk
from humming_convert.passes.known import KnownBox, known_box
from humming_convert.passes.machine import KernelCheckFailed
from humming_convert.passes.padding import Window, fill_padding, prove_padding, whole, window_columns, windows
from humming_convert.passes.scales import place_scale
from humming_convert.passes.scans import any_zero_code, count_nan_e4m3, group_has_magnitude, group_top_and_bottom

__all__ = [
    "PACKINGS",
    "Aux",
    "KernelCheckFailed",
    "KnownBox",
    "Mismatch",
    "Walk",
    "Window",
    "any_zero_code",
    "count_nan_e4m3",
    "fill_padding",
    "group_has_magnitude",
    "group_top_and_bottom",
    "is_fast",
    "known_box",
    "pack_block",
    "place_scale",
    "prove_block",
    "prove_padding",
    "slice_block",
    "supported",
    "walk",
    "whole",
    "window_columns",
    "windows",
]
