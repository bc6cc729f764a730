// In the place of barriers_sm90a.cuh: barriers that count arrivals and bytes.
//
// A phase is over when its arrivals and the bytes that were expected are through; bytes may come before they are expected. Who waits gives a parity, as
// on a GPU: of phases two apart the same.
#pragma once

#include "emulated_copies.hpp"

namespace hc {

struct CountingBarrier {
  const u64* place;
  int arrivals, pending;
  i64 bytes = 0;  // expected, not come
  int phase = 0;
};

// Of a block, in the order in which they were started.
struct Barriers {
  std::deque<CountingBarrier> all;
};

inline CountingBarrier& barrier_at(int block, const u64* place) {
  if (is_over(block)) fail("a barrier of block %d, which has ended", block);
  for (CountingBarrier& b : of_blocks<Barriers>()[block].all)
    if (b.place == place) return b;
  fail("a barrier of block %d that was not started", block);
}

inline void count(CountingBarrier& b, int arrivals, i64 bytes) {
  b.pending -= arrivals, b.bytes += bytes;
  if (b.pending < 0) fail("more arrivals at a barrier than the %d of a phase", b.arrivals);
  if (b.bytes >= 1 << 20 || b.bytes <= -(1 << 20)) fail("more bytes than a barrier counts");
  if (b.pending == 0 && b.bytes == 0) b.phase++, b.pending = b.arrivals;
}

inline void check_barriers() {
  for (const Barriers& of : of_blocks<Barriers>()) {
    for (const CountingBarrier& b : of.all)
      if (b.bytes) fail("a barrier whose bytes are not those expected, by %lld, at the end", -b.bytes);
  }
}

inline void start_barrier(u64* place, int arrivals) {
  static const bool told = (at_end.push_back(check_barriers), true);
  (void)told;
  of_block<Barriers>().all.push_back({place, arrivals, arrivals});
}

inline void arrive_now(u64* place) { count(barrier_at(self->block, place), 1, 0); }

inline void arrive_with_copies(u64* place) {
  auto& groups = of_thread<Copies>().groups;
  const auto copies = groups.back();
  groups.back().clear();
  start(how.late_copies, [copies, place, block = self->block] {
    for (const Copy& c : copies) do_copy(block, c);
    count(barrier_at(block, place), 1, 0);
  });
}

inline void wait_for_phase(u64* place, int parity) {
  const auto over = [](const Wait& w) { return static_cast<const CountingBarrier*>(w.on)->phase % 2 != w.value; };
  const auto tell = [](const Wait& w) {
    const auto& b = *static_cast<const CountingBarrier*>(w.on);
    return "phase " + std::to_string(b.phase) + " of a barrier, " + std::to_string(b.pending) + " arrivals of " + std::to_string(b.arrivals) + " and " +
           std::to_string(b.bytes) + " bytes to come";
  };
  wait_until({over, tell, &barrier_at(self->block, place), parity});
}

}  // namespace hc
