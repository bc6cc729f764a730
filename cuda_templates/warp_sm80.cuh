// Tensor cores of one warp, sm_80 and newer (E4M3: sm_89): 16 rows x 8 columns, 32 bytes of K, float32 or int32 sums.
//
//   lane = 4 * g + t holds   A: four registers as in fragments.cuh     B: bytes 4 t ... and 16 + 4 t ... of row g
//                            sums: (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1)
#pragma once

#include "config.cuh"

namespace hc {

#define HC_MULTIPLY(SHAPE, C)                                                                                                  \
  asm("mma.sync.aligned." SHAPE " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                      \
      : C(d[0]), C(d[1]), C(d[2]), C(d[3])                                                                                    \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

// d += a * b^T
template <Operand kOperand>
HC_FN void multiply(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  static_assert(kOperand == Operand::f16 || kOperand == Operand::bf16 || kOperand == Operand::e4m3, "float32 sums are of floats");
  if constexpr (kOperand == Operand::f16) HC_MULTIPLY("m16n8k16.row.col.f32.f16.f16.f32", "+f");
  if constexpr (kOperand == Operand::bf16) HC_MULTIPLY("m16n8k16.row.col.f32.bf16.bf16.f32", "+f");
  if constexpr (kOperand == Operand::e4m3) HC_MULTIPLY("m16n8k32.row.col.f32.e4m3.e4m3.f32", "+f");
}
template <Operand kOperand>
HC_FN void multiply(int (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  static_assert(kOperand == Operand::s8 || kOperand == Operand::s4, "int32 sums are of integers");
  if constexpr (kOperand == Operand::s8) HC_MULTIPLY("m16n8k32.row.col.s32.s8.s8.s32", "+r");
  if constexpr (kOperand == Operand::s4) HC_MULTIPLY("m16n8k64.row.col.s32.s4.s4.s32", "+r");
}

// Blocks of 8 rows x 16 bytes of shared memory: lane l has the address of row l % 8 of block l / 8, lane 4 * g + t gets the word t of row g of each.
HC_FN void load_blocks(u32 (&to)[1][2], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(to[0][0]), "=r"(to[0][1]) : "r"(address) : "memory");
}
HC_FN void load_blocks(u32 (&to)[2][2], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0][0]), "=r"(to[0][1]), "=r"(to[1][0]), "=r"(to[1][1])
               : "r"(address)
               : "memory");
}

}  // namespace hc
