"""Compiled passes over words: source packing -> packed words, and back for the proof; never one byte a code.

`pack_block`, `fill_padding`, `prove_block`, `prove_padding` for one expert's words, whole or in `windows`; scans of stored tensors.
`walk`: the same block for a processor with code of its own, which `known_box` proves.
Facts: architecture.md 5, layouts.md 5.
"""

from humming_convert.passes.aux_values import AUX_KINDS, LINE, Aux, address, empty_lines
from humming_convert.passes.block_calls import Bases, BlockCalls, block_calls
from humming_convert.passes.blocks import (
    PACKINGS,
    Mismatch,
    Walk,
    aux_sort,
    column_unit,
    is_fast,
    pack_block,
    prove_block,
    slice_block,
    supported,
    walk,
)
from humming_convert.passes.calls import At, Linked, Listing, Program, equal_bytes, function, joined, make, repeated
from humming_convert.passes.known import KnownBox, known_box
from humming_convert.passes.machine import KernelCheckFailed
from humming_convert.passes.padding import (
    Window,
    add_padding,
    fill_padding,
    padding_code,
    prove_padding,
    whole,
    window_columns,
    window_unit,
    windows,
)
from humming_convert.passes.positions import BLOCK, STRIP
from humming_convert.passes.scales import CACHED, LINEAR, ScaleShape, add_scales, place_scale, placed_at, scale_plan
from humming_convert.passes.scans import any_zero_code, count_nan_e4m3, group_has_magnitude, group_top_and_bottom
from humming_convert.passes.small import ROW, ROW_LARGEST, SMALL_PASSES, add_look_up, add_pad_rows, look_up
from humming_convert.passes.strips import add_turn, strip_shape, turns

__all__ = [
    "AUX_KINDS",
    "BLOCK",
    "CACHED",
    "LINE",
    "LINEAR",
    "PACKINGS",
    "ROW",
    "ROW_LARGEST",
    "SMALL_PASSES",
    "STRIP",
    "At",
    "Aux",
    "Bases",
    "BlockCalls",
    "KernelCheckFailed",
    "KnownBox",
    "Linked",
    "Listing",
    "Mismatch",
    "Program",
    "ScaleShape",
    "Walk",
    "Window",
    "add_look_up",
    "add_pad_rows",
    "add_padding",
    "add_scales",
    "add_turn",
    "address",
    "any_zero_code",
    "aux_sort",
    "block_calls",
    "column_unit",
    "count_nan_e4m3",
    "empty_lines",
    "equal_bytes",
    "fill_padding",
    "function",
    "group_has_magnitude",
    "group_top_and_bottom",
    "is_fast",
    "joined",
    "known_box",
    "look_up",
    "make",
    "pack_block",
    "padding_code",
    "place_scale",
    "placed_at",
    "prove_block",
    "prove_padding",
    "repeated",
    "scale_plan",
    "slice_block",
    "strip_shape",
    "supported",
    "turns",
    "walk",
    "whole",
    "window_columns",
    "window_unit",
    "windows",
]
