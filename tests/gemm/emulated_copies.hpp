// In the place of copies_sm80.cuh: cp.async, 16 bytes at a time, and what blocks of one launch say to each other.
//
// `late` copies arrive when they are waited for, others at once.
#pragma once

#include "emulated_threads.hpp"

namespace hc {

struct Copy {
  u32 to;
  const void* from;
  bool there;
};

// Groups of copies of a thread that are under way: the last one is open.
struct Copies {
  std::vector<std::vector<Copy>> groups = std::vector<std::vector<Copy>>(1);
};

// What tensor cores see of shared memory, by chunks of 16 bytes: when ordinary instructions wrote it, when threads made such writes seen.
struct Written {
  std::vector<i64> at = std::vector<i64>(kRoom / 16);
};
static i64 now = 0;

inline void do_copy(int block, const Copy& c) {
  of_blocks<Written>()[block].at[c.to / 16] = ++now;
  if (c.there) {
    memcpy(memory[block] + c.to, c.from, 16);
  } else {
    memset(memory[block] + c.to, 0, 16);
  }
}

inline void copy_16(u32 to, const void* from, bool there) {
  if (to % 16 || reinterpret_cast<u64>(from) % 16) fail("a copy that is not aligned");
  check_room(to, 16, "a copy");
  if (there) check_known(from, 16, "a copy");
  if (how.late_copies) {
    of_thread<Copies>().groups.back().push_back({to, from, there});
  } else {
    do_copy(self->block, {to, from, there});
  }
}
template <i64 kBeyond>
void copy_16_if(bool wanted, u32 to, const void* from) {
  if (wanted) copy_16(to, static_cast<const char*>(from) + kBeyond, true);
}
inline void close_copies() { of_thread<Copies>().groups.emplace_back(); }

template <int kOpen>
inline void wait_for_copies() {
  auto& groups = of_thread<Copies>().groups;
  while (int(groups.size()) - 1 > kOpen) {
    for (const Copy& c : groups.front()) do_copy(self->block, c);
    groups.erase(groups.begin());
  }
}

template <int kThreads>
void sync_first() {
  if (self->thread >= kThreads) fail("waits with the first %d threads", kThreads);
  meet(of_block<Meetings>().first, kThreads, [](const Wait&) -> std::string { return "the first threads of its block"; });
}

inline void fence_of_blocks() {}

// Clusters come one after the other: what one has stored is there for the next.
template <class Word>
void store_shared_by_blocks(Word* to, Word x) {
  *to = x;
}
template <class Word>
Word load_shared_by_blocks(const Word* from) {
  return *from;
}

}  // namespace hc
