// Blocks of threads on a CPU, for the templates' own kernels: a thread is a stack of its own, all of a block take turns. cp.async and the
// tensor cores of a warp are functions here that stand in the place of copies_sm80.cuh and warp_sm80.cuh.
//
// `late` copies arrive when they are waited for, others at once: what is used before it was waited for, and what is overwritten before all
// have read it, shows in one of the two.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <vector>

#define __device__
#define __shared__
#define __align__(n) __attribute__((aligned(n)))

struct Place2 {
  unsigned x, y;
};
static Place2 threadIdx, blockIdx, gridDim;

#include "numbers.cuh"

namespace hc {

constexpr int kRoom = 100 << 10;
alignas(1024) u8 shared[kRoom];

struct Copy {
  u32 to;
  const void* from;
  bool there;
};

struct Barrier {
  int arrived = 0, round = 0;
};

struct Lane {
  u32 a[4], b[2], address;
};

struct Fiber {
  static constexpr int kStack = 256 << 10;
  std::vector<u8> stack = std::vector<u8>(kStack);
  ucontext_t context;
  jmp_buf at;
  bool started = false, ended = false;
  std::vector<std::vector<Copy>> groups = std::vector<std::vector<Copy>>(1);
};

struct Block {
  std::vector<Fiber> fibers;
  Barrier all, warps[32];
  Lane lanes[2][1024];
  int parity[1024] = {};
  std::function<void()> kernel;
  jmp_buf scheduler;
  ucontext_t back;
  int now = 0, room = 0;
  bool late = false;
};
static Block* block;

[[noreturn]] inline void fail(const char* what) {
  fprintf(stderr, "emulated block: %s\n", what);
  abort();
}

inline void yield() {
  if (!_setjmp(block->fibers[block->now].at)) _longjmp(block->scheduler, 1);
}

inline void arrive(Barrier& barrier, int count) {
  const int round = barrier.round;
  if (++barrier.arrived == count) {
    barrier.arrived = 0, barrier.round++;
  } else {
    while (barrier.round == round) yield();
  }
}

inline void run_fiber() {
  block->kernel();
  block->fibers[block->now].ended = true;
  _longjmp(block->scheduler, 1);
}

// All threads of one block, in turns, until each has ended.
inline void run_block(Block& b, int threads, int room, bool late, const std::function<void()>& kernel) {
  block = &b;
  b.fibers.resize(threads);
  for (Fiber& f : b.fibers) f.started = f.ended = false, f.groups.assign(1, {});
  b.all = {};
  for (Barrier& w : b.warps) w = {};
  b.kernel = kernel, b.room = room, b.late = late;
  memset(shared, 0xFF, kRoom);
  for (volatile int left = threads; left;) {
    left = 0;
    for (volatile int i = 0; i < threads; i = i + 1) {
      Fiber& f = b.fibers[i];
      if (f.ended) continue;
      left = left + 1;
      b.now = i, threadIdx = {unsigned(i), 0};
      if (_setjmp(b.scheduler)) continue;
      if (f.started) _longjmp(f.at, 1);
      f.started = true;
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack.data(), f.context.uc_stack.ss_size = Fiber::kStack, f.context.uc_link = &b.back;
      makecontext(&f.context, run_fiber, 0);
      setcontext(&f.context);
    }
  }
}

// --- copies_sm80.cuh

inline u32 shared_address(const void* p) { return u32(static_cast<const u8*>(p) - shared); }

inline void do_copy(const Copy& c) {
  if (c.there) {
    memcpy(shared + c.to, c.from, 16);
  } else {
    memset(shared + c.to, 0, 16);
  }
}

inline void copy_16(u32 to, const void* from, bool there) {
  if (to % 16 || reinterpret_cast<u64>(from) % 16) fail("a copy that is not aligned");
  if (to + 16 > u32(block->room)) fail("a copy beyond the shared memory that was asked for");
  if (block->late) {
    block->fibers[block->now].groups.back().push_back({to, from, there});
  } else {
    do_copy({to, from, there});
  }
}
inline void close_copies() { block->fibers[block->now].groups.emplace_back(); }

template <int kOpen>
inline void wait_for_copies() {
  auto& groups = block->fibers[block->now].groups;
  while (int(groups.size()) - 1 > kOpen) {
    for (const Copy& c : groups.front()) do_copy(c);
    groups.erase(groups.begin());
  }
}

// All threads of the blocks here.
template <int kThreads>
void sync_first() {
  arrive(block->all, kThreads);
}

inline void fence_of_blocks() {}

// Blocks come one after the other: what one has stored is there for the next.
template <class Word>
void store_shared_by_blocks(Word* to, Word x) {
  *to = x;
}
template <class Word>
Word load_shared_by_blocks(const Word* from) {
  return *from;
}

// --- warp_sm80.cuh

// What each lane of this warp gives; the others' as soon as all have given theirs.
inline const Lane* exchanged(const Lane& mine) {
  const int i = block->now, parity = block->parity[i] ^= 1;
  block->lanes[parity][i] = mine;
  arrive(block->warps[i / 32], 32);
  return block->lanes[parity] + i / 32 * 32;
}

template <Operand kOperand>
double number_at(u32 bits, int i) {
  if (kOperand == Operand::s4) return int(bits << (28 - 4 * i)) >> 28;
  if (kOperand == Operand::s8) return int(bits << (24 - 8 * i)) >> 24;
  if (kOperand == Operand::e4m3) return decode_float<4, 3, true, Special::e4m3_nan>(bits >> (8 * i) & 255);
  return decode_half(u16(bits >> (16 * i)), kOperand == Operand::f16 ? Half::f16 : Half::bf16);
}

// Lane 4 * g + t has of A: words t of the first and the second 16 bytes of rows g (a[0], a[2]) and g + 8 (a[1], a[3]); of B: of row g.
template <Operand kOperand, class Sum>
void multiply(Sum (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  constexpr int kEach = kOperand == Operand::s4 ? 8 : kOperand == Operand::s8 || kOperand == Operand::e4m3 ? 4 : 2;
  const Lane* lanes = exchanged({{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, 0});
  const int g = block->now % 32 / 4, t = block->now % 4;
  for (int e = 0; e < 4; e++) {
    double sum = d[e];
    for (int part = 0; part < 4; part++) {
      const Lane &of_a = lanes[4 * g + part], &of_b = lanes[4 * (2 * t + e % 2) + part];
      for (int h = 0; h < 2; h++) {
        for (int i = 0; i < kEach; i++) sum += number_at<kOperand>(of_a.a[2 * h + e / 2], i) * number_at<kOperand>(of_b.b[h], i);
      }
    }
    d[e] = Sum(sum);
  }
}

template <int kPairs>
void load_blocks(u32 (&to)[kPairs][2], u32 address) {
  if (address % 16) fail("a block that is not aligned");
  const Lane* lanes = exchanged({{}, {}, address});
  const int g = block->now % 32 / 4, t = block->now % 4;
  for (int i = 0; i < 2 * kPairs; i++) memcpy(&to[i / 2][i % 2], shared + lanes[8 * i + g].address + 4 * t, 4);
}

}  // namespace hc

inline int atomicAdd(int* to, int x) {
  const int was = *to;
  *to += x;
  return was;
}
inline void __syncthreads() { hc::arrive(hc::block->all, int(hc::block->fibers.size())); }
