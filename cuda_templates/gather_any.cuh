// Rows of x that lists name, one behind the other, so that copies by the hardware find them.  Host side: gemm/gather_any.py.
//
//   to [slots][row of x]: slot i is row x_row(rows[i]); slots of no row stay as they are, since no row of y is made of them
//
// A warp for each slot; all of a lane's part is under way before any of it is stored.
#pragma once

#include "tasks.cuh"

namespace hc {

struct alignas(16) SixteenBytes {
  u32 word[4];
};

template <class L, class C>
__device__ void gather_any(const SixteenBytes* x, const TaskLists& lists, SixteenBytes* to, int slots) {
  constexpr int kOfRow = L::k * L::act_bits / 8 / 16, kRounds = ceil_to(kOfRow, 32) / 32, kAtOnce = kRounds < 8 ? kRounds : 8;
  static_assert(L::k * L::act_bits % 128 == 0, "rows are whole runs of 16 bytes");
  const int slot = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (slot >= slots) return;
  const int row = x_row<C>(lists, lists.rows[slot]);
  if (row < 0) return;
  x += i64(row) * kOfRow, to += i64(slot) * kOfRow;
#pragma unroll 1
  for (int round = 0; round < kRounds; round += kAtOnce) {
    SixteenBytes held[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const int at = (round + i) * 32 + lane;
      if (at < kOfRow) held[i] = x[at];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const int at = (round + i) * 32 + lane;
      if (at < kOfRow) to[at] = held[i];
    }
  }
}

}  // namespace hc
