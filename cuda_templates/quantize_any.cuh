// Activations quantized row by row, as 16-bit numbers that stand for the codes exactly or as E4M3, 8-bit or 4-bit integers, whichever the
// product wants, and float32 scales.
// A block per row.  Modes (layouts.md 4.1): one given scale, one scale a row, one a group; group scales in float32, E8M0 (the next power of two)
// or E4M3, the last with a second factor, given or one a row.  Host side, and the same in numpy: gemm/quantize_any.py.
#pragma once

#include "halves.cuh"
#include "numbers.cuh"

namespace hc {

// x, which was divided by its scale, as the nearest number of the activation's type; ties to even, beyond the largest: the largest.
template <class C>
HC_FN float round_to_type(float x) {
  const float kept = fminf(fmaxf(x, -C::act_top), C::act_top);
  if constexpr (C::act_exponent == 0) {
    return rintf(kept);
  } else {
    constexpr int kLowest = 2 - (1 << (C::act_exponent - 1));  // of normal numbers: 1 - bias
    const int e = int(as_bits(kept) >> 23 & 255) - 127;
    const float step = power_of_two((e < kLowest ? kLowest : e) - C::act_mantissa);
    return rintf(kept / step) * step;
  }
}

// The scale of a group as its type holds it, never 0. `want`: largest magnitude over the largest number of the type.
template <class C>
HC_FN float group_scale(float want) {
  if constexpr (C::as_type == ScaleType::e8m0) {
    const u32 bits = as_bits(want);
    const int e = int(bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0);
    return want > 0 ? power_of_two(e < -126 ? -126 : e) : 1.0f;
  } else if constexpr (C::as_type == ScaleType::e4m3) {
    const float kept = fminf(want, 448.0f);
    const int e = int(as_bits(kept) >> 23 & 255) - 127;
    const float step = power_of_two((e < -6 ? -6 : e) - 3);
    const float near = rintf(kept / step) * step;
    return near > 0 ? near : power_of_two(-9);
  } else {
    return want > 0 ? want : 1.0f;
  }
}

// A number of the type, as the operand that is multiplied.
template <class L, class C>
HC_FN void store_operand(void* q, i64 at, float x) {
  if constexpr (C::operand == Operand::e2m1 || C::operand == Operand::s4) {
    // two a byte: whoever writes the second finds the first
    u8* byte = static_cast<u8*>(q) + at / 2;
    const u8 code = C::operand == Operand::e2m1 ? to_e2m1(x) : u8(int(x) & 15);
    *byte = at % 2 ? u8(*byte | code << 4) : code;
  } else if constexpr (C::operand == Operand::e4m3 || C::operand == Operand::s8) {
    static_cast<u8*>(q)[at] = to_byte<C::operand>(x);
  } else {
    static_cast<u16*>(q)[at] = to_half<L::half>(x);
  }
}

template <class L, class C, class T>
__device__ void quantize_any(const u16* x, const float* given, void* q, float* x_scale, int m) {
  constexpr int kThreads = T::threads, K = L::k;
  constexpr int kGroup = C::act_mode == ActMode::group ? C::act_group : K, kGroups = ceil_to(K, kGroup) / kGroup;
  __shared__ float shared[kThreads];
  const u16* from = x + i64(blockIdx.x) * K;
  const i64 to = i64(blockIdx.x) * K;

  // Largest magnitude of the row
  float largest = 0;
  for (int k = threadIdx.x; k < K; k += kThreads) largest = fmaxf(largest, fabsf(decode_half(from[k], L::half)));
  shared[threadIdx.x] = largest;
  __syncthreads();
  for (int half = kThreads / 2; half; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + half]);
    __syncthreads();
  }
  largest = shared[0];

  // The second factor
  float second = 1;
  if constexpr (C::act_second == ActSecond::tensor) second = given[0];
  if constexpr (C::act_second == ActSecond::token) second = largest > 0 ? largest / (448.0f * C::act_top) : 1.0f;

  // A thread a group
  if constexpr (C::act_mode == ActMode::group) {
    for (int group = threadIdx.x; group < kGroups; group += kThreads) {
      const int end = (group + 1) * kGroup < K ? (group + 1) * kGroup : K;
      float top = 0;
      for (int k = group * kGroup; k < end; k++) top = fmaxf(top, fabsf(decode_half(from[k], L::half)));
      const float scale = group_scale<C>(top / (C::act_top * second)), factor = scale * second;
      for (int k = group * kGroup; k < end; k++) store_operand<L, C>(q, to + k, round_to_type<C>(decode_half(from[k], L::half) / factor));
      x_scale[i64(blockIdx.x) * kGroups + group] = factor;
    }
  } else {
    const float scale = C::act_mode == ActMode::fixed ? given[0] : (largest > 0 ? largest / C::act_top : 1.0f);
    constexpr int kTogether = C::operand == Operand::e2m1 || C::operand == Operand::s4 ? 2 : 1;  // a thread has whole bytes
    for (int k0 = kTogether * threadIdx.x; k0 < K; k0 += kTogether * kThreads) {
      for (int k = k0; k < k0 + kTogether; k++) store_operand<L, C>(q, to + k, round_to_type<C>(decode_half(from[k], L::half) / scale));
    }
    if (threadIdx.x == 0) x_scale[blockIdx.x] = scale;
  }
}

}  // namespace hc
