// Weight scales, secondary scales and biases as float32 (layouts.md 6, 8).
// In: one expert's tensors (tensor scales: that expert's value), row n, group g.  Out: the factor.
#pragma once

#include "numbers.cuh"
#include "orders.cuh"

namespace hc {

// Place of scale (n, g): an index into the stored scales, bytes where words hold bytes.
template <class L>
HC_FN int scale_index(int n, int g) {
  constexpr int N = L::shape_n;
  switch (L::scale_place) {
    case ScalePlace::tensor: return 0;
    case ScalePlace::block: return g * (L::group_n ? N / L::group_n : 1) + (L::group_n ? n / L::group_n : 0);
    // 6.2: a word holds four groups of one row; rows of 128 in the order 0 32 64 96 1 33 ...
    case ScalePlace::umma: return (g / 4 * ceil_to(N, 128) + n / 128 * 128 + n % 32 * 4 + n % 128 / 32) * 4 + g % 4;
    // 6.3: a word holds two groups of two rows that are 8 apart
    case ScalePlace::mx1: return (g / 2 * (N / 2) + n / 16 * 8 + n % 8) * 4 + n % 16 / 8 * 2 + g % 2;
    // 6.4: a word holds four groups of one row
    case ScalePlace::mx4: return (g / 4 * N + n) * 4 + g % 4;
    case ScalePlace::on_c: return g * N + order_c(n);
    default: return g * N + normal_order<L>(n);
  }
}

// The scale that is stored at an index.
template <class L>
HC_FN float weight_scale_at(const void* scales, int at) {
  const u8* bytes = static_cast<const u8*>(scales);
  switch (L::scale_type) {
    case ScaleType::f16: return decode_half(static_cast<const u16*>(scales)[at], Half::f16);
    case ScaleType::bf16: return decode_half(static_cast<const u16*>(scales)[at], Half::bf16);
    case ScaleType::f32: return static_cast<const float*>(scales)[at];
    case ScaleType::e8m0: return decode_e8m0(bytes[at]);
    case ScaleType::e4m3: return decode_float<4, 3, true, Special::e4m3_nan>(bytes[at]);
    case ScaleType::e5m2: return decode_float<5, 2, true, Special::ieee>(bytes[at]);
    case ScaleType::e5m3: return decode_float<5, 3, false, Special::none>(bytes[at]);
    case ScaleType::int16: return float(static_cast<const s16*>(scales)[at]);  // S9; the factor is in the secondary scale
    // S5: exponents over the low end of the row, one more for e4m3; the secondary scale holds the low end, halved
    case ScaleType::fused_e8m0: return power_of_two(int(bytes[at]) + 1 - L::fused_plus);
    // S7: the upper bits of a float16; an exponent field of 0, which stands for all below 2^-14, is 0
    default: return decode_half(u16(bytes[at]) << 7, Half::f16);
  }
}

template <class L>
HC_FN float weight_scale(const void* scales, int n, int g) {
  return weight_scale_at<L>(scales, scale_index<L>(n, g));
}

template <class L>
HC_FN float secondary_scale(const void* scale_2, int n) {
  if constexpr (L::scale_2 == Scale2::tensor) {
    return *static_cast<const float*>(scale_2);
  } else if constexpr (L::scale_2 == Scale2::channel) {
    return decode_half(static_cast<const u16*>(scale_2)[order_c(n)], L::half);
  } else {
    return 1.0f;
  }
}

template <class L>
HC_FN float bias_of(const void* bias, int n) {
  return L::has_bias ? decode_half(static_cast<const u16*>(bias)[order_c(n)], L::half) : 0.0f;
}

}  // namespace hc
