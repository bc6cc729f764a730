// The vocabulary of the three configurations. The host writes `struct Layer` (bytes), `struct Compute` (mathematics) and `struct Tuning`
// (speed only) in these words in front of the entry template; gemm/layer.py, gemm/compute.py and gemm/tuning.py mirror this file.
#pragma once

#include "portable.cuh"

namespace hc {

// Where the codes are (layouts.md 5.2 to 5.6), and which field of a word a code takes (5.2).
enum class Place { standard, packed_k, raw, flat };
enum class Interleave { mode3, mode2, native };

// What was done to a code before it was placed (5.0 b): nothing, the map with the midpoint, or the map with the zero point of (n, k).
enum class CodeMap { none, midpoint, zero_point };

// How a code or a scale byte is read (layouts.md 1). `special`: which codes are no numbers.
enum class Kind { offset_binary, floating };
enum class Special { none, e4m3_nan, ieee };

// Where weight scales are (layouts.md 6), and what one of them is.
enum class ScalePlace { tensor, block, umma, mx1, mx4, on_c, normal };
enum class ScaleType { f16, bf16, f32, e8m0, e4m3, e5m2, e5m3, int16, fused_e8m0, rebiased_e8m0 };

enum class Zero { none, integer, floating };
enum class Scale2 { none, tensor, channel };

// The model's 16-bit float; what the tensor cores are given; the type of the result.
enum class Half { f16, bf16 };
enum class Operand { f16, bf16, e4m3, s8, s4, e2m1 };
enum class Output { f32, f16, bf16 };

// Scales of the activations: none, one a row, one a row and group of K.
enum class ActScale { none, token, group };
enum class ActMode { fixed, token, group };
enum class ActSecond { none, tensor, token };

// Which rows meet which expert: all the only one; lists; rows in the order of experts; room for rows of each expert.
enum class Task { dense, indexed, gathered, contiguous, masked };

}  // namespace hc
