// 16-bit floats of the device: from float32, nearest even. Every number of codes.cuh fits exactly.
#pragma once

#include "config.cuh"

namespace hc {

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

template <Output kOutput>
HC_FN void store(void* y, i64 at, float x) {
  if constexpr (kOutput == Output::f32) {
    static_cast<float*>(y)[at] = x;
  } else {
    static_cast<u16*>(y)[at] = to_half<kOutput == Output::f16 ? Half::f16 : Half::bf16>(x);
  }
}

}  // namespace hc
