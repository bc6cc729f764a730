// From a placed code to the number that is multiplied: maps undone, integer zero points taken off. Exact in float16 and in bfloat16.
// Floating zero points are not taken off here: code minus zero point need not fit 16 bits (mma_any.cuh takes them from the sums).
// Facts: layouts.md 1, 5.0.
#pragma once

#include "numbers.cuh"
#include "places.cuh"
#include "zero_points.cuh"

namespace hc {

// The column of zero points that the map of 5.0 b reads: k div group where the group is a power of two.
template <class L>
HC_FN int map_column(int k) {
  return (64 * (k / 64) + k % 64 / L::map_group * L::map_group) / L::map_group;
}

// The code of the standard form, but for e0m codes, which are read as what they are.
template <class L>
HC_FN u32 standard_code(const u32* words, const void* zero_point, int n, int k) {
  u32 code = placed_code<L>(words, n, k);
  constexpr u32 kTop = (1u << L::bits) - 1;
  if constexpr (L::sign_flip) code ^= 1u << (L::bits - 1);
  if constexpr (L::map != CodeMap::none) {
    // placed = c >= z ? c - z : top - c
    u32 z = 1u << (L::bits - 1);
    if constexpr (L::map == CodeMap::zero_point) z = u32(integer_zero<L>(zero_point, n, map_column<L>(k)));
    code = code + z <= kTop ? code + z : kTop - code;
  }
  return code;
}

template <class L>
HC_FN int weight_group(int k) {
  return L::group_k ? k / L::group_k : 0;
}

// The multiplied number of (n, k).
template <class L>
HC_FN float weight_number(const u32* words, const void* zero_point, int n, int k) {
  const u32 code = standard_code<L>(words, zero_point, n, k);
  if constexpr (L::zero == Zero::integer) {
    static_assert(L::kind == Kind::offset_binary, "integer zero points belong to integer codes");
    return float(int(code) - integer_zero<L>(zero_point, n, weight_group<L>(k)));
  } else if constexpr (L::zero == Zero::floating && L::kind == Kind::offset_binary) {
    return float(code);  // integer codes count from 0 beside a floating zero point
  } else {
    return decode_weight<L>(code);
  }
}

}  // namespace hc
