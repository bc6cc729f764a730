// Which rows a block multiplies, and by which expert. A block has a tile of slots; a slot is a row of x and y, or none (-1).
//
//   dense       every row by the only expert
//   indexed     lists made by gemm/tasks.py: each tile of slots has one expert, a slot has its row of y; -1 is empty. A row of x has `room` rows of y,
//               one after the other: its top_k experts
//   contiguous  counts of experts: the rows of expert 0, then those of expert 1, ...; each expert's last tile may be short
//   masked      counts of experts: room for `room` rows of each expert, of which the first counts[e] are there
//
// Counts are read on the device, so that nothing waits for the host: there are as many blocks as there may be tiles, and those without one return.
#pragma once

#include "config.cuh"

namespace hc {

// rows: indexed only.  experts: of tiles (indexed), or counts of rows (contiguous, masked).  room: of an expert (masked), top_k (indexed).
struct TaskLists {
  const int* rows;
  const int* experts;
  int room;
};

// expert -1: no tile. Slots from `first` to before `end`.
struct RowTile {
  int expert, first, end;
};

template <class L, class C, int kTileM>
HC_FN RowTile tile_of(const TaskLists& lists, int tile, int m) {
  constexpr int kExperts = L::experts ? L::experts : 1;
  if constexpr (C::task == Task::dense) {
    return {0, tile * kTileM, m};
  } else if constexpr (C::task == Task::indexed) {
    return {lists.experts[tile], tile * kTileM, (tile + 1) * kTileM};
  } else if constexpr (C::task == Task::masked) {
    const int each = ceil_to(lists.room, kTileM) / kTileM, e = tile / each;
    const int first = tile % each * kTileM, count = e < kExperts ? lists.experts[e] : 0;
    return {first < count ? e : -1, e * lists.room + first, e * lists.room + count};
  } else {
    // All counts are read, so that no read waits for the one before
    RowTile found = {-1, 0, 0};
    int before = 0;
#pragma unroll 16
    for (int e = 0; e < kExperts; e++) {
      const int count = lists.experts[e], tiles = ceil_to(count, kTileM) / kTileM;
      if (tile >= 0 && tile < tiles) found = {e, before + tile * kTileM, before + count};
      tile -= tiles;
      before += count;
    }
    return found;
  }
}

// The row of y.
template <class C>
HC_FN int row_of(const TaskLists& lists, const RowTile& tile, int slot) {
  if constexpr (C::task == Task::indexed) return lists.rows[slot];
  return slot < tile.end ? slot : -1;
}

// The row of x that row `row` of y is made of.
template <class C>
HC_FN int x_row(const TaskLists& lists, int row) {
  if constexpr (C::task == Task::indexed) return row < 0 || lists.room == 1 ? row : int(u32(row) / u32(lists.room));
  return row;
}

}  // namespace hc
