// Number types: a code as a float32, exactly. All types of layouts.md 1, of weights, scales and 16-bit values.
// In: a code of kExponent, kMantissa and perhaps a sign bit.  Out: its value; a NaN where the type has one.
#pragma once

#include "config.cuh"

namespace hc {

// 2^e for -149 <= e <= 127.
HC_FN float power_of_two(int e) { return e >= -126 ? as_float(u32(e + 127) << 23) : as_float(1u << (e + 149)); }

template <int kExponent, int kMantissa, bool kSigned, Special kSpecial>
HC_FN float decode_float(u32 code) {
  constexpr u32 kFractions = (1u << kMantissa) - 1, kExponents = (1u << kExponent) - 1;
  const u32 fraction = code & kFractions, exponent = (code >> kMantissa) & kExponents;
  const bool negative = kSigned && (code >> (kExponent + kMantissa)) & 1;
  float value;
  if constexpr (kExponent == 0) {
    value = float(fraction);  // sign and magnitude: a whole number
  } else {
    constexpr int kBias = (1 << (kExponent - 1)) - 1;
    const bool normal = exponent != 0;
    const u32 significand = fraction | (normal ? 1u << kMantissa : 0u);
    value = float(significand) * power_of_two((normal ? int(exponent) : 1) - kBias - kMantissa);
  }
  if constexpr (kSpecial == Special::e4m3_nan) {
    if ((code & 0x7F) == 0x7F) value = as_float(0x7FC00000);
  }
  if constexpr (kSpecial == Special::ieee) {
    if (exponent == kExponents) value = fraction ? as_float(0x7FC00000) : as_float(0x7F800000);
  }
  return negative ? -value : value;
}

HC_FN float decode_half(u16 bits, Half type) {
  return type == Half::bf16 ? as_float(u32(bits) << 16) : decode_float<5, 10, true, Special::ieee>(bits);
}

// 2^(code - 127); 255 is NaN (layouts.md 1).
// The code is an exponent, but for 0, which is 2^-127, less than any number that has one, and for 255, whose place is that of infinity.
HC_FN float decode_e8m0(u8 code) { return finite_or_nan(larger_of(as_float(u32(code) << 23), as_float(1u << 22))); }

// The value of a weight code before zero points: offset binary counts from its midpoint.
template <class L>
HC_FN float decode_weight(u32 code) {
  if constexpr (L::kind == Kind::offset_binary) {
    return float(int(code) - (1 << (L::bits - 1)));
  } else {
    return decode_float<L::exponent, L::mantissa, L::has_sign, L::special>(code);
  }
}

}  // namespace hc
