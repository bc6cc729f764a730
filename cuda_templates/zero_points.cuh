// Zero points: nibbles or bytes in order "64", perhaps those of several groups side by side; or 16-bit values (layouts.md 7).
// In: one expert's zero points, row n, group g.  Out: the number that is taken from the code.
#pragma once

#include "numbers.cuh"
#include "orders.cuh"

namespace hc {

template <class L>
HC_FN int integer_zero(const void* zero_point, int n, int g) {
  const u8* bytes = static_cast<const u8*>(zero_point);
  const int at = normal_order<L>(n);
  if constexpr (L::zero_width == 8) {
    return bytes[g * L::shape_n + at];
  } else {
    // joined groups: byte m of v groups in a row, then byte m + 1
    constexpr int v = L::zero_groups, kRow = L::shape_n / 2;
    const u8 pair = bytes[g / v * (kRow * v) + at / 2 * v + g % v];
    return at % 2 ? pair >> 4 : pair & 15;
  }
}

template <class L>
HC_FN float floating_zero(const void* zero_point, int n, int g) {
  return decode_half(static_cast<const u16*>(zero_point)[g * L::shape_n + normal_order<L>(n)], L::half);
}

}  // namespace hc
