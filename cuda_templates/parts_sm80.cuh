// Parts of K that several blocks multiply: neighbours in the grid, whose sums the last of them adds up.
//
//   grid   x = tile of N * parts + part      y = tile of rows
//   sums   [tile of rows][tile of N][part][sum of a thread][thread], 4 bytes each; arrived: [tile of rows][tile of N], 0 between launches
//
// Parts are added up in their order, whichever block comes last: the result is that of any other run. Of two parts it need not read its own again;
// of more, those would be in its registers beside the others.  Host side: gemm/parts.py.
#pragma once

#include "copies_sm80.cuh"

namespace hc {

struct PartSums {
  int* arrived;
  void* sums;
};

// A block's tile, counted as `sums` is, and its part.
struct PartOf {
  int tile, part;
};

template <int kParts>
HC_FN PartOf part_of_block() {
  return {int(blockIdx.y * (gridDim.x / kParts) + blockIdx.x / kParts), int(blockIdx.x % kParts)};
}

// own: the sums of this thread over this block's part, of its first kThreads threads.  True: this block came last, and they are those over
// all of K.  scratch: shared memory that no thread reads any more once all have come here.
template <int kParts, int kThreads, class Sum, int kRows, int kEach>
HC_FN bool added_up(Sum (&own)[kRows][kEach], const PartSums& to, int* scratch, const PartOf& of = part_of_block<kParts>()) {
  static_assert(sizeof(Sum) == 4, "gemm/parts.py counts the same bytes");
  constexpr int kOwn = kRows * kEach;
  Sum* const sums = static_cast<Sum*>(to.sums) + i64(of.tile) * (kParts * kOwn * kThreads) + threadIdx.x;
#pragma unroll
  for (int v = 0; v < kOwn; v++) store_shared_by_blocks(sums + (of.part * kOwn + v) * kThreads, own[v / kEach][v % kEach]);
  fence_of_blocks();
  sync_first<kThreads>();
  if (threadIdx.x == 0) *scratch = atomicAdd(to.arrived + of.tile, 1);
  sync_first<kThreads>();
  if (*scratch != kParts - 1) return false;
  fence_of_blocks();
  if (threadIdx.x == 0) to.arrived[of.tile] = 0;
#pragma unroll
  for (int v = 0; v < kOwn; v++) {
    const Sum mine = own[v / kEach][v % kEach];
    Sum total = 0;
#pragma unroll 4
    for (int k = 0; k < kParts; k++) {
      const Sum part = kParts == 2 && k == of.part ? mine : load_shared_by_blocks(sums + (k * kOwn + v) * kThreads);
      total = k == 0 ? part : total + part;
    }
    own[v / kEach][v % kEach] = total;
  }
  return true;
}

}  // namespace hc
