// Words that the other headers are written in. The address and number headers use nothing else, so that a C++ compiler reads them as well as
// NVRTC: the tests run them on a CPU.  No CUDA header and no standard header is included anywhere in this folder.
#pragma once

#ifdef __CUDACC__
#define HC_FN __device__ __forceinline__
#else
#define HC_FN inline
#endif

namespace hc {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using s16 = short;
using i64 = long long;
using u64 = unsigned long long;

HC_FN float as_float(u32 bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
#endif
}

HC_FN u32 as_bits(float f) {
#ifdef __CUDACC__
  return __float_as_uint(f);
#else
  u32 bits;
  __builtin_memcpy(&bits, &f, 4);
  return bits;
#endif
}

HC_FN float larger_of(float a, float b) {
#ifdef __CUDACC__
  return fmaxf(a, b);
#else
  return __builtin_fmaxf(a, b);
#endif
}

// The number itself, and NaN instead of infinity: 0 times that is NaN.
HC_FN float finite_or_nan(float x) {
#ifdef __CUDACC__
  return fmaf(x, 0.0f, x);
#else
  return __builtin_fmaf(x, 0.0f, x);
#endif
}

// (a & mask) | more, as one instruction: with two constants the compiler makes two of it.
HC_FN u32 and_or(u32 a, u32 mask, u32 more) {
#ifdef __CUDACC__
  u32 out;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(out) : "r"(a), "r"(mask), "r"(more));
  return out;
#else
  return (a & mask) | more;
#endif
}

// (a & mask) ^ more, for the same reason.
HC_FN u32 and_xor(u32 a, u32 mask, u32 more) {
#ifdef __CUDACC__
  u32 out;
  asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(out) : "r"(a), "r"(mask), "r"(more));
  return out;
#else
  return (a & mask) ^ more;
#endif
}

// Bytes of low (0..3) and high (4..7) by the low three bits of the four lowest nibbles of `which`; where the fourth is set, eight times the byte's top bit.
HC_FN u32 byte_permute(u32 low, u32 high, u32 which) {
#ifdef __CUDACC__
  u32 out;  // __byte_perm has no fourth bit
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(which));
  return out;
#else
  u32 out = 0;
  for (int i = 0; i < 4; i++) {
    const u32 from = which >> (4 * i) & 7, byte = (from < 4 ? low : high) >> (8 * (from % 4)) & 255u;
    out |= (which >> (4 * i) & 8 ? byte / 128 * 255 : byte) << (8 * i);
  }
  return out;
#endif
}

// A number that templates and generic lambdas can take as a constant.
template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

// f(Constant<kBegin>()), ..., f(Constant<kEnd - 1>()).
template <int kBegin, int kEnd, class F>
HC_FN void unrolled(const F& f) {
  if constexpr (kBegin < kEnd) {
    f(Constant<kBegin>());
    unrolled<kBegin + 1, kEnd>(f);
  }
}

template <bool kFirst, class A, class B>
struct Choose {
  using type = A;
};
template <class A, class B>
struct Choose<false, A, B> {
  using type = B;
};

// One of two, known when compiling.
template <bool kFirst, class A, class B>
HC_FN auto& pick(A& a, B& b) {
  if constexpr (kFirst) {
    return a;
  } else {
    return b;
  }
}

HC_FN constexpr int ceil_to(int x, int unit) { return (x + unit - 1) / unit * unit; }

}  // namespace hc
