// Reads memory once and keeps nothing: no kernel that needs as many bytes from memory can be quicker.  Host side: gemm/read_floor.py.
// 16 bytes a thread at a time, kAtOnce of them on their way before the first is looked at; threads of the grid take neighbours.
#pragma once

#include "portable.cuh"

namespace hc {

struct alignas(16) Sixteen {
  u32 word[4];
};

// past L1, whose lines nobody reads again
__device__ __forceinline__ Sixteen sixteen(const Sixteen* at) {
  Sixteen v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(at));
  return v;
}

__device__ __forceinline__ u32 all_of(const Sixteen& v) { return v.word[0] & v.word[1] & v.word[2] & v.word[3]; }

// count: of 16 bytes.  sink: written to if every bit that was read is set, which nobody can know before.
template <int kAtOnce>
__device__ void read_floor(const Sixteen* from, i64 count, u32* sink) {
  const i64 threads = i64(gridDim.x) * blockDim.x;
  u32 seen = ~0u;
  i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x;

  // Whole rounds of the grid
  for (; at + (kAtOnce - 1) * threads < count; at += kAtOnce * threads) {
    Sixteen held[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) held[i] = sixteen(from + at + i * threads);
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) seen &= all_of(held[i]);
  }

  // The rest
  for (; at < count; at += threads) seen &= all_of(sixteen(from + at));
  if (seen == ~0u) *sink = seen;
}

}  // namespace hc
