// In the place of bulk_sm90a.cuh: clusters, copies of boxes and runs of bytes.
#pragma once

#include "emulated_barriers.hpp"

namespace hc {

// emulated_block.py writes the same words.
struct alignas(64) TensorMap {
  u64 first, rows, columns, item, box_rows, others[11];
};

// What x is: a tensor map, or the address of rows that lists name.
template <class Given>
const Given given_rows(const void* x) {
  if constexpr (sizeof(Given) == sizeof(TensorMap)) {
    return *static_cast<const Given*>(x);
  } else {
    return static_cast<Given>(x);
  }
}

// Any lane, but the same each time.
inline bool elected() { return self->thread % 32 == 5; }

inline int same_in_warp(int x) { return told(x)[0]; }

struct MyCluster {
  int arrivals = 0;
};
// Threads that have ended count as arrived.
inline void cluster_arrive() { of_thread<MyCluster>().arrivals++; }
inline void cluster_wait() {
  const auto over = [](const Wait& w) {
    const auto& all = of_threads<MyCluster>();
    for (const Fiber& f : fibers)
      if (!f.ended && all[f.number].arrivals < w.value) return false;
    return true;
  };
  wait_until({over, [](const Wait&) -> std::string { return "all threads of its cluster"; }, nullptr, of_thread<MyCluster>().arrivals});
}

inline void publish_barriers() {}

inline void expect_bytes(u64* place, int bytes) {
  CountingBarrier& b = barrier_at(self->block, place);
  b.bytes += bytes;
  count(b, 1, 0);
}

// A number for each first barrier and block, from which on barriers are 8 apart.
inline std::vector<const u64*>& first_barriers() {
  static std::vector<const u64*> all;
  return all;
}
inline u32 barriers_in(int rank, const u64* first) {
  if (rank >= launched.cluster) fail("block %d of a cluster of %d", rank, launched.cluster);
  auto& all = first_barriers();
  u32 at = 0;
  while (at < all.size() && all[at] != first) at++;
  if (at == all.size()) all.push_back(first);
  return (at * kBlocks + rank) << 12;
}
inline void arrive_there(u32 barrier) {
  count(barrier_at((barrier >> 12) % kBlocks, first_barriers()[(barrier >> 12) / kBlocks] + barrier % (1 << 12) / 8), 1, 0);
}

// Bytes that were brought by the hardware: seen by tensor cores.
inline void bring(int block, u32 to, const void* from, int bytes) {
  if (from) {
    memcpy(memory[block] + to, from, bytes);
  } else {
    memset(memory[block] + to, 0, bytes);
  }
  for (u32 chunk = to / 16; chunk < (to + bytes) / 16; chunk++) of_blocks<Written>()[block].at[chunk] = 0;
}

inline void copy_run(u32 to, const void* from, int bytes, u64* place) {
  if (to % 16 || reinterpret_cast<u64>(from) % 16 || bytes % 16) fail("a run of bytes that is not aligned");
  check_room(to, bytes, "a run of bytes"), check_known(from, bytes, "a run of bytes");
  start(how.late_copies, [=, block = self->block] {
    CountingBarrier& barrier = barrier_at(block, place);
    bring(block, to, from, bytes);
    count(barrier, 0, -bytes);
  });
}

template <int kInto>
void copy_box(u32 to, const TensorMap* map, int column, int row, u64* place, int first) {
  const int bytes = int(map->box_rows) * 128;
  if (to % 128) fail("a box that is not aligned");
  if (kInto == 1) first = self->block;
  if (first + kInto > launched.cluster) fail("a copy to %d blocks from the %dth on of a cluster of %d", kInto, first, launched.cluster);
  check_room(to, bytes, "a box");
  for (int block = first; block < first + kInto; block++) {
    start(how.late_copies, [=, m = *map] {
      CountingBarrier& barrier = barrier_at(block, place);
      for (int r = 0; r < int(m.box_rows); r++) {
        for (int c = 0; c < 8; c++) {
          const u32 at = to + r * 128 + c * 16;
          const i64 first = i64(column) * m.item + c * 16, there = i64(m.columns * m.item) - first;
          const bool whole = row + r < i64(m.rows) && there >= 16;
          if (row + r < i64(m.rows) && there > 0 && there < 16) fail("a row that ends inside 16 bytes");
          bring(block, at ^ (at / 128 % 8 * 16), whole ? reinterpret_cast<const u8*>(m.first) + (row + r) * m.columns * m.item + first : nullptr, 16);
        }
      }
      count(barrier, 0, -bytes);
    });
  }
}

inline u32 address_in(int rank, const void* place) {
  if (rank >= launched.cluster) fail("block %d of a cluster of %d", rank, launched.cluster);
  return u32(rank) * kRoom + shared_address(place);
}
template <class Word>
void store_far(u32 to, Word x) {
  check_room(to % kRoom, sizeof(Word), "a word in another block");
  memcpy(memory[to / kRoom] + to % kRoom, &x, sizeof(Word));
}

}  // namespace hc
