// Block-scaled mma.sync of one warp on sm_120a: 16 rows x 8 columns, 32 bytes of K, each operand with scales of its own, float32 sums.
//
//   lane = 4 * g + t holds   A, B and sums: as mma_sync.cuh and fragments.cuh have them
//                            scales of A: t = 0 those of row g, t = 1 those of row g + 8     of B: t = 0 those of column g
//                            one, two or four bytes, from byte 0 on, for groups of 32, 32 (of 64) and 16 columns
//
// Types of four and six bits lie in bytes beside E4M3: E2M1 in bits 2 to 5, E2M3 and E3M2 in bits 0 to 5.
#pragma once

#include "config.cuh"

namespace hc {

#define HC_MX(SHAPE)                                                                                                    \
  asm volatile("mma.sync.aligned." SHAPE " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, {0, 0}, {%11}, {0, 0};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scale_a), "r"(scale_b))
#define HC_MX_8(TYPE) HC_MX("kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32." TYPE ".e4m3.f32.ue8m0")
#define HC_MX_4(VEC, SCALE) HC_MX("kind::mxf4nvf4.block_scale.scale_vec::" VEC ".m16n8k64.row.col.f32.e2m1.e2m1.f32." SCALE)

// B is E4M3; A is of kExponent and kMantissa bits.
template <int kExponent, int kMantissa>
HC_FN void mma_mx8(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], u32 scale_a, u32 scale_b) {
  if constexpr (kExponent == 4 && kMantissa == 3) HC_MX_8("e4m3");
  if constexpr (kExponent == 5 && kMantissa == 2) HC_MX_8("e5m2");
  if constexpr (kExponent == 2 && kMantissa == 1) HC_MX_8("e2m1");
  if constexpr (kExponent == 2 && kMantissa == 3) HC_MX_8("e2m3");
  if constexpr (kExponent == 3 && kMantissa == 2) HC_MX_8("e3m2");
}

// A and B are E2M1. kGroup 16: E4M3 scales; 32: E8M0.
template <int kGroup>
HC_FN void mma_mx4(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], u32 scale_a, u32 scale_b) {
  if constexpr (kGroup == 16) HC_MX_4("4X", "ue4m3");
  if constexpr (kGroup == 32) HC_MX_4("2X", "ue8m0");
}

}  // namespace hc
