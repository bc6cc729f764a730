// 16-bit floats: from float32, nearest even; two of them at once. Every number of codes.cuh fits exactly.
// A C++ compiler gets functions of its own, which round the same: the tests run kernels with them.
#pragma once

#include "numbers.cuh"

namespace hc {

#ifdef __CUDACC__

template <Half kHalf>
HC_FN u16 to_half(float x) {
  u16 bits;
  if constexpr (kHalf == Half::f16) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  } else {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
    bits = 0;  // never compiled in: mma_any refuses bfloat16 below sm_80
#endif
  }
  return bits;
}

// decode_half, by one instruction.
template <Half kHalf>
HC_FN float half_to_float(u16 bits) {
  if constexpr (kHalf == Half::bf16) return as_float(u32(bits) << 16);
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(bits));
  return out;
}

template <Half kHalf>
HC_FN u32 subtract_two(u32 a, u32 b) {
  u32 out;
  if constexpr (kHalf == Half::f16) {
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  } else {
#if __CUDA_ARCH__ >= 900
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
#else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(0x3F803F80u), "r"(b ^ 0x80008000u));  // a * 1 - b
#endif
  }
  return out;
}

template <Half kHalf>
HC_FN u32 multiply_two(u32 a, u32 b) {
  u32 out;
  if constexpr (kHalf == Half::f16) {
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  } else {
#if __CUDA_ARCH__ >= 900
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
#else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(0x80008000u));  // a * b - 0
#endif
  }
  return out;
}

// a * b + c, rounded once.
template <Half kHalf>
HC_FN u32 multiply_add_two(u32 a, u32 b, u32 c) {
  u32 out;
  if constexpr (kHalf == Half::f16) {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  } else {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  }
  return out;
}

// The first in the low half.
template <Half kHalf>
HC_FN u32 two_halves(float first, float second) {
  u32 out;
  if constexpr (kHalf == Half::f16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(second), "f"(first));
  }
  return out;
}

// The same number in both halves.
template <Half kHalf>
HC_FN u32 twice(float x) {
  u32 out;
  if constexpr (kHalf == Half::f16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %1;" : "=r"(out) : "f"(x));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %1;" : "=r"(out) : "f"(x));
  }
  return out;
}

// A number that an 8-bit operand holds, as its byte.
template <Operand kOperand>
HC_FN u8 to_byte(float x) {
  if constexpr (kOperand == Operand::s8) {
    return u8(int(x));
  } else {
    u16 pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return u8(pair);
  }
}

// A number of E2M1 as its code: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
HC_FN u8 to_e2m1(float x) {
  const float size = fabsf(x);
  const u32 code = size < 2 ? u32(2 * size) : size < 4 ? u32(size) + 2 : size < 6 ? 6 : 7;
  return u8(code | (as_bits(x) >> 31) << 3);
}

#else

// Without its lowest kDropped bits, nearest even; what carries out of a fraction is the next exponent.
template <int kDropped>
HC_FN u32 without_bits(u32 bits) {
  return (bits + (1u << (kDropped - 1)) - 1 + (bits >> kDropped & 1)) >> kDropped;
}

template <Half kHalf>
HC_FN u16 to_half(float x) {
  constexpr u32 kInfinity = 0x7F800000, kSmallestNormal = 113u << 23, kRoundsToInfinity = 0x477FF000;  // of float16, as float32
  const u32 bits = as_bits(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  if (magnitude > kInfinity) return u16(sign | 0x7FFF);
  if (kHalf == Half::bf16) return u16(sign | without_bits<16>(magnitude));
  if (magnitude >= kRoundsToInfinity) return u16(sign | 0x7C00);
  if (magnitude < kSmallestNormal) return u16(sign | u32(__builtin_rintf(as_float(magnitude) * 16777216.0f)));
  return u16(sign | without_bits<13>(magnitude - (112u << 23)));
}

template <Half kHalf>
HC_FN float half_to_float(u16 bits) {
  return decode_half(bits, kHalf);
}

template <Half kHalf, class F>
HC_FN u32 each_of_two(u32 a, u32 b, const F& f) {
  u32 out = 0;
  for (int h = 0; h < 2; h++) {
    const float x = decode_half(u16(a >> (16 * h)), kHalf), y = decode_half(u16(b >> (16 * h)), kHalf);
    out |= u32(to_half<kHalf>(f(x, y))) << (16 * h);
  }
  return out;
}

template <Half kHalf>
HC_FN u32 subtract_two(u32 a, u32 b) {
  return each_of_two<kHalf>(a, b, [](float x, float y) { return x - y; });
}

template <Half kHalf>
HC_FN u32 multiply_two(u32 a, u32 b) {
  return each_of_two<kHalf>(a, b, [](float x, float y) { return x * y; });
}

// For results that float32 holds: it rounds twice.
template <Half kHalf>
HC_FN u32 multiply_add_two(u32 a, u32 b, u32 c) {
  u32 out = 0;
  for (int h = 0; h < 2; h++) {
    const float x = decode_half(u16(a >> (16 * h)), kHalf), y = decode_half(u16(b >> (16 * h)), kHalf), z = decode_half(u16(c >> (16 * h)), kHalf);
    out |= u32(to_half<kHalf>(__builtin_fmaf(x, y, z))) << (16 * h);
  }
  return out;
}

template <Half kHalf>
HC_FN u32 two_halves(float first, float second) {
  return to_half<kHalf>(first) | u32(to_half<kHalf>(second)) << 16;
}

template <Half kHalf>
HC_FN u32 twice(float x) {
  return to_half<kHalf>(x) * 0x00010001u;
}

#endif

template <Output kOutput>
HC_FN void store(void* y, i64 at, float x) {
  if constexpr (kOutput == Output::f32) {
    static_cast<float*>(y)[at] = x;
  } else {
    static_cast<u16*>(y)[at] = to_half<kOutput == Output::f16 ? Half::f16 : Half::bf16>(x);
  }
}

// Two neighbours; `at` is even.
template <Output kOutput>
HC_FN void store_two(void* y, i64 at, float first, float second) {
  struct alignas(8) Pair {
    float x[2];
  };
  if constexpr (kOutput == Output::f32) {
    *reinterpret_cast<Pair*>(static_cast<float*>(y) + at) = {{first, second}};
  } else {
    constexpr Half kHalf = kOutput == Output::f16 ? Half::f16 : Half::bf16;
    *reinterpret_cast<u32*>(static_cast<u16*>(y) + at) = to_half<kHalf>(first) | u32(to_half<kHalf>(second)) << 16;
  }
}

}  // namespace hc
