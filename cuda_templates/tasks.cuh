// Which rows a block multiplies, and by which expert. A block has a tile of slots; a slot is a row of x and y, or none (-1).
//
//   dense       every row by the only expert
//   indexed     lists made by gemm/tasks.py: each tile of slots has one expert, a slot has its row of y; -1 is empty. A row of x has `room` rows of y,
//               one after the other: its top_k experts
//   gathered    the same, but slot i has row i of x: they were brought there before (gather_any.cuh). Scales of x are where they were
//   contiguous  counts of experts: the rows of expert 0, then those of expert 1, ...; each expert's last tile may be short
//   masked      counts of experts: room for `room` rows of each expert, of which the first counts[e] are there
//
// Counts are read on the device, so that nothing waits for the host: there are as many blocks as there may be tiles, and those without one return.
#pragma once

#include "config.cuh"

namespace hc {

// rows: of lists only.  experts: of tiles (lists), or counts of rows (contiguous, masked).  room: of an expert (masked), top_k (lists).
struct TaskLists {
  const int* rows;
  const int* experts;
  int room;
};

// expert -1: no tile. Slots from `first` to before `end`.
struct RowTile {
  int expert, first, end;
};

template <class C>
HC_FN constexpr bool listed() {
  return C::task == Task::indexed || C::task == Task::gathered;
}

// Tile `tile` of the experts' rows, which lie one behind the other; -1: there is none.
#if defined(__CUDACC__) || defined(HC_WARPS)
// Every lane of the warp counts for some experts: one read of memory, and not one for each of them.
template <int kExperts, int kTileM>
HC_FN RowTile tile_of_counts(const int* counts, int tile) {
  constexpr int kEach = ceil_to(kExperts, 32) / 32;
  constexpr unsigned kAll = 0xFFFFFFFF;
  const int lane = threadIdx.x % 32;
  int mine[kEach];
#pragma unroll
  for (int i = 0; i < kEach; i++) mine[i] = 32 * i + lane < kExperts ? counts[32 * i + lane] : 0;
  RowTile found = {-1, 0, 0};
  int tiles_before = 0, rows_before = 0;
#pragma unroll
  for (int i = 0; i < kEach; i++) {
    const int tiles = ceil_to(mine[i], kTileM) / kTileM;
    int tiles_to = tiles, rows_to = mine[i];  // with those of the lanes before
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const int more_tiles = __shfl_up_sync(kAll, tiles_to, by), more_rows = __shfl_up_sync(kAll, rows_to, by);
      if (lane >= by) tiles_to += more_tiles, rows_to += more_rows;
    }
    tiles_to += tiles_before, rows_to += rows_before;
    const unsigned whose = __ballot_sync(kAll, tile >= tiles_to - tiles && tile < tiles_to);
    if (whose) {
      const int at = __ffs(whose) - 1, end = __shfl_sync(kAll, rows_to, at);
      found = {32 * i + at, end - __shfl_sync(kAll, mine[i], at) + (tile - __shfl_sync(kAll, tiles_to - tiles, at)) * kTileM, end};
    }
    tiles_before = __shfl_sync(kAll, tiles_to, 31), rows_before = __shfl_sync(kAll, rows_to, 31);
  }
  return found;
}
#else
template <int kExperts, int kTileM>
HC_FN RowTile tile_of_counts(const int* counts, int tile) {
  int before = 0;
  for (int e = 0; e < kExperts; e++) {
    const int tiles = ceil_to(counts[e], kTileM) / kTileM;
    if (tile < tiles) return {e, before + tile * kTileM, before + counts[e]};
    tile -= tiles, before += counts[e];
  }
  return {-1, 0, 0};
}
#endif

// By all threads of a warp.
template <class L, class C, int kTileM>
HC_FN RowTile tile_of(const TaskLists& lists, int tile, int m) {
  constexpr int kExperts = L::experts ? L::experts : 1;
  if constexpr (C::task == Task::dense) {
    return {0, tile * kTileM, m};
  } else if constexpr (listed<C>()) {
    return {lists.experts[tile], tile * kTileM, (tile + 1) * kTileM};
  } else if constexpr (C::task == Task::masked) {
    const int each = ceil_to(lists.room, kTileM) / kTileM, e = tile / each;
    const int first = tile % each * kTileM, count = e < kExperts ? lists.experts[e] : 0;
    return {first < count ? e : -1, e * lists.room + first, e * lists.room + count};
  } else {
    return tile_of_counts<kExperts, kTileM>(lists.experts, tile);
  }
}

// The row of y.
template <class C>
HC_FN int row_of(const TaskLists& lists, const RowTile& tile, int slot) {
  if constexpr (listed<C>()) return lists.rows[slot];
  return slot < tile.end ? slot : -1;
}

// The row of x that row `row` of y is made of.
template <class C>
HC_FN int x_row(const TaskLists& lists, int row) {
  if constexpr (listed<C>()) return row < 0 || lists.room == 1 ? row : int(u32(row) / u32(lists.room));
  return row;
}

}  // namespace hc
