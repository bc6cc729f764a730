// From the codes of a register to what tensor cores multiply: two 16-bit floats, four E4M3, four 8-bit or eight 4-bit integers, all at once.
// In: codes of fragments.cuh, the zero point of their row.  Out: operands whose number times `operand_unit` is the weight's, exactly.
//
//   16-bit   an integer below 2^10 (2^7) is the fraction of 1024 (128): one subtraction leaves code - zero point; a float's fields are moved
//            to their place and its exponent is mended by a multiplication
//   E4M3     bytes 0 .. 16 count in steps of 2^-9: an integer is its own byte; smaller floats are moved
//   8 bits   code - zero point; E2M1 counts in halves
//   4 bits   code - zero point
//
// Facts: layouts.md 1, 5.0 (maps).
#pragma once

#include "codes.cuh"
#include "fragments.cuh"
#include "halves.cuh"

namespace hc {

// The bytes of ones where `bits` (0 or 1 in each byte) has a 1.
HC_FN u32 spread_bytes(u32 bits) { return bits * 255u; }

// What a number of `operand` has to be multiplied by. Powers of two.
template <class L, Operand kOperand>
HC_FN constexpr float operand_unit() {
  if constexpr (kOperand == Operand::e4m3) {
    if constexpr (L::kind == Kind::offset_binary || L::exponent == 0) {
      return 512;
    } else {
      return float(1 << (8 - (1 << (L::exponent - 1))));  // biases: 7 and 2^(exponent - 1) - 1
    }
  }
  return kOperand == Operand::s8 && L::kind == Kind::floating ? 0.5f : 1.0f;
}

// NaN and infinity of a float type, as those of the 16-bit one; `magnitudes` without sign.
template <class L, Half kHalf>
HC_FN u32 special_bits(u32 magnitudes) {
  if constexpr (L::special == Special::none) {
    return 0;
  } else {
    constexpr u32 kStep = L::special == Special::e4m3_nan ? 1 : 1u << L::mantissa, kTop = 1u << (L::exponent + L::mantissa);
    constexpr u32 kAll = L::special == Special::e4m3_nan ? 0x7FFF : kHalf == Half::f16 ? 0x7C00 : 0x7F80;
    const u32 over = (magnitudes + in_each<16>(kStep)) & in_each<16>(kTop);  // carries out where every bit, or the whole exponent, is 1
    return (over >> (L::exponent + L::mantissa)) * kAll;
  }
}

// An integer that is its own fraction: 1024 (128) is put beside the codes, whose steps are 1 there.
template <class L, Half kHalf>
struct Fractions {
  static constexpr int kFraction = kHalf == Half::f16 ? 10 : 7;
  static constexpr u32 kOne = kHalf == Half::f16 ? 0x6400 : 0x4300;
  static constexpr bool kTaken = L::kind == Kind::offset_binary && L::map == CodeMap::none && L::bits <= kFraction;
  static constexpr u32 kBeside = kTaken ? in_each<16>(kOne) : 0u;
};

// An integer of one bit more, stored with the map of its midpoint: a sign and a fraction.
template <class L, Half kHalf>
struct SignedFraction {
  static constexpr bool kTaken = L::kind == Kind::offset_binary && L::map == CodeMap::midpoint && L::bits == 8 && kHalf == Half::bf16;
};

// A float whose fields are moved to those of a 16-bit one; kFactor mends the exponent.
template <class L, Half kHalf>
struct HalfFloat {
  static constexpr int kFraction = Fractions<L, kHalf>::kFraction, kMagnitude = L::exponent + L::mantissa, kMove = kFraction - L::mantissa;
  static constexpr int kBias = L::exponent ? (1 << (L::exponent ? L::exponent - 1 : 0)) - 1 : 0, kMend = (kHalf == Half::f16 ? 15 : 127) - kBias;
  static constexpr u32 kFactor = kHalf == Half::f16 ? u32(15 + kMend) << 10 : u32(127 + kMend) << 7;
  static constexpr bool kTaken = L::kind == Kind::floating && L::exponent > 0 && L::special == Special::none;
  static_assert(L::kind != Kind::floating || (L::mantissa <= kFraction && L::exponent <= 5), "fields fit");
};

// codes: with kBeside.  zero: of the row; without zero points the midpoint.
template <class L, Half kHalf>
HC_FN u32 half_operand(u32 codes, u32 zero) {
  constexpr int B = L::bits, kFraction = Fractions<L, kHalf>::kFraction;
  constexpr u32 kOne = Fractions<L, kHalf>::kOne;
  if constexpr (Fractions<L, kHalf>::kTaken) {
    return subtract_two<kHalf>(codes, in_each<16>(kOne | zero));
  } else if constexpr (L::kind == Kind::offset_binary && L::map == CodeMap::none && B == kFraction + 1 && L::zero != Zero::floating) {
    // one bit more than a fraction has: c - 128 is (128 + low bits) - 128 where the top bit is set, and - 256 where it is not; 256 is 0x4380
    const u32 numbers = subtract_two<kHalf>(and_or(codes, in_each<16>(0x7F), in_each<16>(kOne)), and_or(~codes, in_each<16>(0x80), in_each<16>(kOne)));
    if constexpr (L::zero == Zero::none) return numbers;
    return subtract_two<kHalf>(numbers, in_each<16>(to_half<kHalf>(float(int(zero) - 128))));
  } else if constexpr (SignedFraction<L, kHalf>::kTaken) {
    // the top bit is a sign, and the low bits m: m, or -(m + 1). 128 + m less 128; where negative, -(128 + m) and 127
    const u32 negative = byte_permute(codes, 0, 0xAA88), size = and_or(codes, in_each<16>(0x7F), in_each<16>(kOne));
    return subtract_two<kHalf>(and_xor(negative, in_each<16>(0x8000), size), and_xor(negative, in_each<16>(0x4300 ^ 0xC2FE), in_each<16>(0x4300)));
  } else if constexpr (L::kind == Kind::offset_binary) {
    // bfloat16 beside wide codes, c - z one by one: with a map c >= z was stored as c - z, others as top - c
    u32 out = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int stored = codes >> (16 * h) & 0xFFFF, top = (1 << B) - 1;
      const int number = L::map == CodeMap::none ? stored - int(zero) : stored + int(zero) <= top ? stored : top - stored - int(zero);
      out |= u32(to_half<kHalf>(float(number))) << (16 * h);
    }
    return out;
  } else {
    using Number = HalfFloat<L, kHalf>;
    const u32 magnitudes = codes & in_each<16>((1u << Number::kMagnitude) - 1);
    const u32 signs = L::has_sign ? (codes << (15 - Number::kMagnitude)) & in_each<16>(0x8000) : 0u;
    if constexpr (L::exponent == 0) return subtract_two<kHalf>(magnitudes | in_each<16>(kOne), in_each<16>(kOne)) ^ signs;
    const u32 moved = magnitudes << Number::kMove | signs;
    return (Number::kMend ? multiply_two<kHalf>(moved, in_each<16>(Number::kFactor)) : moved) | special_bits<L, kHalf>(magnitudes);
  }
}

// Scale bytes that are floats, in the words of half_operand.
template <ScaleType kType>
struct ScaleCodes {
  static constexpr int bits = 8, exponent = kType == ScaleType::e4m3 ? 4 : 5, mantissa = 7 - exponent;
  static constexpr bool has_sign = true;
  static constexpr Kind kind = Kind::floating;
  static constexpr CodeMap map = CodeMap::none;
  static constexpr Zero zero = Zero::none;
  static constexpr Special special = kType == ScaleType::e4m3 ? Special::e4m3_nan : Special::ieee;
};

// Two scales that are floats of 8 bits, in the low bytes, as float16, which holds them.
template <ScaleType kType>
HC_FN u32 f16_scales(u32 pair) {
  if constexpr (kType == ScaleType::e5m2) {
    return byte_permute(pair, 0, 0x1404);  // a float16 without the lower half of its fraction
  } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    u32 out;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"(u16(pair)));
    return out;
#else
    return half_operand<ScaleCodes<kType>, Half::f16>(byte_permute(pair, 0, 0x4140), 0);
#endif
  }
}

// The same of floats that are whole fields of a word: sign and magnitude are moved to their places at once.
template <class L, Half kHalf, int i, int r>
HC_FN u32 half_of_fields(const LaneWords<L>& from) {
  using Number = HalfFloat<L, kHalf>;
  const u32 moved = from.template moved<i, r, Number::kMove>() & in_each<16>(((1u << Number::kMagnitude) - 1) << Number::kMove);
  const u32 sign = L::has_sign ? from.template moved<i, r, 15 - Number::kMagnitude>() & in_each<16>(0x8000) : 0u;
  return Number::kMend ? multiply_two<kHalf>(moved | sign, in_each<16>(Number::kFactor)) : moved | sign;
}

// A sign and a fraction that are whole fields of a word: the fraction where it lies in its byte, 2^kAt times as large, behind the bits of 1024 (128).
template <class L, Half kHalf>
struct SignedFields {
  static constexpr bool kTaken = L::kind == Kind::floating && L::exponent == 0 && L::has_sign && L::mantissa <= 3;
};
template <class L, Half kHalf, int i, int r>
HC_FN u32 half_of_signed_fields(const LaneWords<L>& from) {
  using Beside = Fractions<L, kHalf>;
  constexpr int kAt = LaneWords<L>::field(i, r).bit % 8;
  static_assert(kAt + L::mantissa <= Beside::kFraction, "a fraction has room there");
  constexpr u32 kMask = in_each<16>(((1u << L::mantissa) - 1) << kAt);
  constexpr float kUnit = 1.0f / float(1 << kAt);
  const u32 large = and_or(from.template moved<i, r, kAt>(), kMask, in_each<16>(Beside::kOne));
  const u32 size = kAt == 0 ? subtract_two<kHalf>(large, in_each<16>(Beside::kOne))
                            : multiply_add_two<kHalf>(large, twice<kHalf>(kUnit), twice<kHalf>(-kUnit * float(1 << Beside::kFraction)));
  return and_xor(from.template moved<i, r, 15 - L::mantissa>(), in_each<16>(0x8000), size);
}

template <class L>
HC_FN u32 e4m3_operand(u32 codes, u32 zero) {
  constexpr int B = L::bits;
  if constexpr (L::kind == Kind::offset_binary && L::map == CodeMap::midpoint) {
    // the top bit is a sign; -1 is stored as sign and 0: the sign moves to bit 7, and 1 is added
    static_assert(B <= 5, "integers of E4M3 end at 16");
    return codes + (codes >> (B - 1) & in_each<8>(1)) * (129u - (1u << (B - 1)));
  } else if constexpr (L::kind == Kind::offset_binary) {
    // stored + zero beyond the top: the number is -(stored + zero - top)
    static_assert(L::map == CodeMap::zero_point && B <= 4, "integers of E4M3 end at 16");
    // bit 7 of `over` says so, also for a zero point that is no code: such damage must show
    const u32 over = codes + in_each<8>(1) * (zero + 128 - (1u << B)), negative = over >> 7 & in_each<8>(1), mask = spread_bytes(negative);
    const u32 below = (over & in_each<8>(0x7F)) + in_each<8>(1);
    return (codes & ~mask) | (below & mask) | negative << 7;
  } else {
    constexpr int kMagnitude = L::exponent + L::mantissa;
    static_assert(L::exponent == 0 ? L::mantissa <= 4 : L::exponent <= 4 && L::mantissa <= 3, "E4M3 holds the type");
    constexpr int kMove = L::exponent == 0 ? 0 : 3 - L::mantissa;
    const u32 magnitudes = codes & in_each<8>((1u << kMagnitude) - 1);
    return magnitudes << kMove | (L::has_sign ? (codes << (7 - kMagnitude)) & in_each<8>(0x80) : 0u);
  }
}

// The magnitudes of E2M1 as bytes of E4M3, times 2^-6.
struct FusedNumbers {
  u32 low, high;
};
HC_FN FusedNumbers fused_numbers() { return {0x0C080400u, 0x1C181410u}; }
// The same times 2^b, for the b of 1 to 12 that fused scales have (layouts.md S5): into the exponents; 0.5 is no fraction any more. A greater b is damage
// that must show: as 15 it is none of these for any number but 0, where as it is it would be one of them again from 32 on.
HC_FN FusedNumbers fused_numbers(u32 b) {
  const u32 none_other = b < 15 ? b : 15;
  return {0x0C080000u + none_other * 0x08080800u, 0x1C181410u + none_other * 0x08080808u};
}

// Fused E2M1 in mode 2: the low bits are in order, so that they choose among eight bytes; signs lie where register r wants them (layouts.md 5.2).
template <int r>
HC_FN u32 e4m3_of_mode2(u32 word, const FusedNumbers& of) {
  const u32 numbers = byte_permute(of.low, of.high, (r / 2 ? word >> 16 : word) & 0x7777u);
  return numbers | ((r / 2 ? word : word << 4) & 0x80808080u);
}

template <class L>
HC_FN u32 s8_operand(u32 codes, u32 zero) {
  if constexpr (L::kind == Kind::offset_binary) {
    if constexpr (L::bits == 8 && L::sign_flip) return codes;  // two's complement already
    const u32 from = L::sign_flip ? codes ^ in_each<8>(1u << (L::bits - 1)) : codes;
    // bit 7 keeps a byte from borrowing of the next
    return ((from | 0x80808080u) - in_each<8>(1) * zero) ^ 0x80808080u;
  } else {
    static_assert(L::exponent == 2 && L::mantissa == 1, "E2M1 in halves");
    const u32 low = codes & 0x07070707u, pairs = low | low >> 4, which = byte_permute(pairs, 0, 0x0020u) & 0xFFFFu;
    const u32 halves = byte_permute(0x03020100u, 0x0C080604u, which), mask = spread_bytes(codes >> 3 & 0x01010101u);
    const u32 minus = (0x80808080u - halves) ^ 0x80808080u;
    return (halves & ~mask) | (minus & mask);
  }
}

template <class L>
HC_FN u32 s4_operand(u32 codes, u32 zero) {
  static_assert(L::kind == Kind::offset_binary && (L::bits <= 3 || L::sign_flip), "numbers of -8 to 7");
  if constexpr (L::bits == 4) return codes;  // two's complement already
  const u32 from = L::sign_flip ? codes ^ in_each<4>(1u << (L::bits - 1)) : codes;
  // bit 3 keeps a nibble from borrowing of the next
  return ((from | 0x88888888u) - in_each<4>(1) * zero) ^ 0x88888888u;
}

// Register r of row tile i of a lane.
template <class L, Operand kOperand, int i, int r>
HC_FN u32 operand(const LaneWords<L>& from, int lane, u32 zero) {
  if constexpr (L::interleave == Interleave::mode2) {
    static_assert(kOperand == Operand::e4m3 && L::bits == 4, "mode 2 is fused E2M1 beside E4M3");
    return e4m3_of_mode2<r>(from.template whole<i, r>(), fused_numbers());
  } else {
    if constexpr (kOperand == Operand::f16 || kOperand == Operand::bf16) {
      constexpr Half kHalf = kOperand == Operand::f16 ? Half::f16 : Half::bf16;
      if constexpr (HalfFloat<L, kHalf>::kTaken && LaneWords<L>::kFields) return half_of_fields<L, kHalf, i, r>(from);
      if constexpr (SignedFields<L, kHalf>::kTaken && LaneWords<L>::kFields) return half_of_signed_fields<L, kHalf, i, r>(from);
      // bits beside the codes do not matter here
      if constexpr (SignedFraction<L, kHalf>::kTaken && LaneWords<L>::kFields) return half_operand<L, kHalf>(from.template moved<i, r, 0>(), zero);
      return half_operand<L, kHalf>(from.template codes<i, r, Fractions<L, kHalf>::kBeside>(lane), zero);
    } else {
      const u32 codes = from.template codes<i, r>(lane);
      if constexpr (kOperand == Operand::e4m3) return e4m3_operand<L>(codes, zero);
      if constexpr (kOperand == Operand::s8) return s8_operand<L>(codes, zero);
      if constexpr (kOperand == Operand::s4) return s4_operand<L>(codes, zero);
    }
  }
}

// The zero point that `operand` wants for row n and the columns from k on: a power of two columns that share it. A floating one is taken from
// sums, beside integers that count from 0.
template <class L>
HC_FN u32 operand_zero(const void* zero_point, int n, int k) {
  if constexpr (L::zero == Zero::integer) {
    return u32(integer_zero<L>(zero_point, n, L::map == CodeMap::zero_point ? map_column<L>(k) : weight_group<L>(k)));
  } else {
    return L::zero == Zero::floating ? 0u : 1u << (L::bits - 1);
  }
}

}  // namespace hc
