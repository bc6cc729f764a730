// mma.sync of one warp: 16 rows x 8 columns, K of 8 (sm75, and groups that 16 does not divide) or 16 (sm80 and newer), float32 sums.
//
//   lane = 4 * g + t holds   A: rows g, g + 8, columns 2t, 2t + 1 (and 2t + 8, 2t + 9)     B: the same columns of row g
//                            sums: (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1)
#pragma once

#include "config.cuh"

namespace hc {

template <int kStep>
struct Fragments {
  u32 a[kStep / 4], b[kStep / 8];
};

// Two 16-bit numbers that are neighbours in shared memory.
HC_FN u32 two(const u16* p) { return *reinterpret_cast<const u32*>(p); }

template <int kStep>
HC_FN void load_a(u32* a, const u16* tile, int pitch, int g, int t) {
#pragma unroll
  for (int h = 0; h < kStep / 8; h++) {
    a[2 * h] = two(tile + g * pitch + 2 * t + 8 * h);
    a[2 * h + 1] = two(tile + (g + 8) * pitch + 2 * t + 8 * h);
  }
}

template <int kStep>
HC_FN void load_b(u32* b, const u16* tile, int pitch, int g, int t) {
#pragma unroll
  for (int h = 0; h < kStep / 8; h++) b[h] = two(tile + g * pitch + 2 * t + 8 * h);
}

#define HC_MMA_8(TYPE)                                                                                                        \
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32." TYPE "." TYPE ".f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"       \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                              \
               : "r"(a[0]), "r"(a[1]), "r"(b[0]))
#define HC_MMA_16(TYPE)                                                                                                       \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

template <Half kHalf, int kStep>
HC_FN void mma(float (&d)[4], const u32* a, const u32* b) {
#if __CUDA_ARCH__ < 800
  static_assert(kHalf == Half::f16 && kStep == 8, "sm_75 multiplies float16, 8 columns at a time");
  if constexpr (kHalf == Half::f16) HC_MMA_8("f16");
#else
  if constexpr (kHalf == Half::f16 && kStep == 8) HC_MMA_8("f16");
  if constexpr (kHalf == Half::bf16 && kStep == 8) HC_MMA_8("bf16");
  if constexpr (kHalf == Half::f16 && kStep == 16) HC_MMA_16("f16");
  if constexpr (kHalf == Half::bf16 && kStep == 16) HC_MMA_16("bf16");
#endif
}

}  // namespace hc
