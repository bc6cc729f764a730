// In the place of warpgroup_sm90a.cuh: wgmma, and registers that warpgroups give each other.
//
// A product goes on by itself when all 128 threads have asked for it. Until it is waited for its sums are poisoned, and what was put there or into its
// operand A meanwhile is a fault. It reads shared memory when it comes, early or late.
#pragma once

#include "emulated_copies.hpp"
#include "emulated_numbers.hpp"

namespace hc {

constexpr u32 kPoison = 0x7FC0DEADu;  // a NaN; a number that shows, as an integer

struct Product {
  struct OfThread {
    u32* sums = nullptr;
    const u32* a;
    u32 seen[4];
    std::vector<u32> start;  // the sums before it; empty: those of a product under way, or none
    bool poisoned;
  };
  u64 rows;
  bool add;
  int operand, columns, given = 0;
  i64 published;
  void (*multiply)(Product&, int block);
  OfThread of[128];
};

// first: number of the first product that is kept.  done: how many are.
struct Warpgroup {
  std::deque<Product> products;
  i64 first = 0, done = 0;
};
struct Warpgroups {
  Warpgroup of[8];
};
struct OfProducts {
  i64 asked = 0, published = 0;
  std::vector<i64> ends;  // of closed groups
  bool is_ready = false;
};

inline Warpgroup& warpgroup() { return of_block<Warpgroups>().of[self->thread / 128]; }

inline void publish_to_tensor_cores() { of_thread<OfProducts>().published = ++now; }
inline void ready() { of_thread<OfProducts>().is_ready = true; }
inline void close_products() {
  auto& mine = of_thread<OfProducts>();
  mine.ends.push_back(mine.asked);
}

template <int kOpen>
inline void wait_for_products() {
  const auto& ends = of_thread<OfProducts>().ends;
  const auto over = [](const Wait& w) { return static_cast<const Warpgroup*>(w.on)->done >= w.value; };
  const auto tell = [](const Wait&) -> std::string { return "products, which the other warps of its warpgroup have not asked for"; };
  of_thread<OfProducts>().is_ready = false;  // what is waited for is used, and written to
  if (int(ends.size()) > kOpen) wait_until({over, tell, &warpgroup(), ends[ends.size() - 1 - kOpen]});
}

// Rows of B and their bytes by the descriptor: eight rows are 1024 bytes, 128-byte swizzle.
inline void read_rows(const Product& p, int block, u8* to) {
  const u32 first = u32(p.rows & 0x3FFF) << 4, of_eight = u32(p.rows >> 32 & 0x3FFF) << 4;
  if (p.rows >> 62 != 1 || p.rows >> 49 & 7) fail("a descriptor of rows that are not swizzled in 128 bytes from a multiple of 1024 on");
  for (int r = 0; r < p.columns; r++) {
    for (int half = 0; half < 2; half++) {
      u32 at = first + r / 8 * of_eight + r % 8 * 128 + 16 * half;
      at ^= at / 128 % 8 * 16;
      check_room(at, 16, "rows of a product");
      if (of_blocks<Written>()[block].at[at / 16] > p.published) fail("rows of a product that tensor cores do not see yet");
      memcpy(to + 32 * r + 16 * half, memory[block] + at, 16);
    }
  }
}

template <Operand kOperand, int kN, class Sum>
void multiply_rows(Product& p, int block) {
  constexpr int kK = 256 / bits_of<kOperand>(), kEach = 32 / bits_of<kOperand>();
  static double a[64][kK], b[kK][kN], sums[kN];
  static u8 rows[kN * 32];
  read_rows(p, block, rows);
  for (int n = 0; n < kN; n++) {
    for (int word = 0; word < 8; word++) {
      u32 bits;
      memcpy(&bits, rows + 32 * n + 4 * word, 4);
      for (int i = 0; i < kEach; i++) b[word * kEach + i][n] = number_at<kOperand>(bits, i);
    }
  }
  for (int lane = 0; lane < 128; lane++) {
    const int row = lane / 32 * 16 + lane % 32 / 4, t = lane % 4;
    for (int r = 0; r < 4; r++) {
      for (int i = 0; i < kEach; i++) a[row + r % 2 * 8][(r / 2 * 4 + t) * kEach + i] = number_at<kOperand>(p.of[lane].seen[r], i);
    }
  }
  for (int row = 0; row < 64; row++) {
    for (double& sum : sums) sum = 0;
    for (int k = 0; k < kK; k++) {
      for (int n = 0; n < kN; n++) sums[n] += a[row][k] * b[k][n];
    }
    for (int t = 0; t < 4; t++) {
      auto& of = p.of[row / 16 * 32 + row % 8 * 4 + t];
      for (int j = 0; j < kN / 8; j++) {
        for (int c = 0; c < 2; c++) {
          Sum before = 0, *const at = reinterpret_cast<Sum*>(of.start.data()) + 4 * j + row % 16 / 8 * 2 + c;
          if (p.add) before = *at;
          *at = Sum(before + sums[8 * j + 2 * t + c]);
        }
      }
    }
  }
}

// The next product that comes of a warpgroup.
inline void do_product(int block, int group) {
  Warpgroup& w = of_blocks<Warpgroups>()[block].of[group];
  Product& p = w.products[w.done - w.first];
  p.multiply(p, block);
  w.done++;
  for (int lane = 0; lane < 128; lane++) {
    auto& of = p.of[lane];
    if (memcmp(of.a, of.seen, sizeof of.seen)) fail("an operand of thread %d of block %d was changed while it was multiplied", group * 128 + lane, block);
    for (size_t i = 0; i < of.start.size(); i++)
      if (of.sums[i] != kPoison) fail("sums of thread %d of block %d were changed while they were made", group * 128 + lane, block);
    // To the next product of these sums, or to the thread
    Product::OfThread* next = nullptr;
    for (size_t i = w.done - w.first; i < w.products.size() && !next; i++)
      if (w.products[i].of[lane].sums == of.sums) next = &w.products[i].of[lane];
    if (next) {
      next->start.swap(of.start);
    } else {
      memcpy(of.sums, of.start.data(), 4 * of.start.size());
    }
  }
  while (w.first < w.done) w.products.pop_front(), w.first++;
}

template <Operand kOperand, int kN, class Sum>
__attribute__((noinline)) void wgmma(Sum (&d)[kN / 2], const u32 (&a)[4], u64 b, bool add) {
  auto& mine = of_thread<OfProducts>();
  Warpgroup& w = warpgroup();
  if (!mine.is_ready) fail("a product whose registers were not made ready");
  const int group = self->thread / 128, lane = self->thread % 128;
  const size_t at = mine.asked++ - w.first;
  if (at == w.products.size()) {
    w.products.emplace_back();
    Product& p = w.products.back();
    p.rows = b, p.add = add, p.operand = int(kOperand), p.columns = kN, p.multiply = multiply_rows<kOperand, kN, Sum>, p.published = now;
  }
  Product& p = w.products[at];
  if (p.rows != b || p.add != add || p.operand != int(kOperand) || p.columns != kN) fail("threads of a warpgroup ask for different products");
  auto& of = p.of[lane];
  of.sums = reinterpret_cast<u32*>(d), of.a = a;
  memcpy(of.seen, a, sizeof of.seen);
  bool under_way = false;
  for (size_t i = 0; i < at; i++) under_way = under_way || w.products[i].of[lane].sums == of.sums;
  if (!under_way) {
    of.start.assign(of.sums, of.sums + kN / 2);
    for (u32& sum : reinterpret_cast<u32(&)[kN / 2]>(d)) sum = kPoison;
  }
  if (mine.published < p.published) p.published = mine.published;
  if (++p.given == 128) start(how.late_products, [block = self->block, group] { do_product(block, group); });
}

// Turns that a thread has waited for. Here nobody goes on without having got one: a GPU lets it, with the same results.
struct OfTurns {
  int waited = 0;
};
template <bool kAgain>
void wait_for_turn(u64* mine, int parity) {
  const int before = of_thread<OfTurns>().waited++ - (self->thread < 128);  // the first warpgroup begins
  wait_for_phase(mine, parity);
  if (barrier_at(self->block, mine).phase != before + 1) fail("a turn before phase %d of its barrier is over, or late", before);
}
// Behind a product, which lanes of a warp ask for together: one of them speaks for all.
inline void pass_turn(u64* of_other, bool speaks) {
  __syncwarp();
  if (speaks) arrive_now(of_other);
}

struct Assistants {
  Meeting all;
};
template <int kThreads>
void sync_assistants() {
  if (self->thread < launched.threads - kThreads) fail("waits with the last %d threads", kThreads);
  meet(of_block<Assistants>().all, kThreads, [](const Wait&) -> std::string { return "the assistants of its block"; });
}

struct OfRows {
  u32 given[2][1024];
  int parity[1024] = {};
};
inline void store_turned(u32 address, u32 first, u32 second) {
  auto& rows = of_block<OfRows>();
  const int i = self->thread, lane = i % 32, g = lane / 4, t = lane % 4, parity = rows.parity[i] ^= 1;
  if (lane < 16 && address % 16) fail("a row of a block that is not aligned");
  rows.given[parity][i] = address;
  meet_warp();
  for (int half = 0; half < 4; half++) {
    const u32 to = rows.given[parity][i / 32 * 32 + half / 2 * 8 + 2 * t + half % 2] + 2 * g;
    const u16 number = u16((half < 2 ? first : second) >> half % 2 * 16);
    check_room(to, 2, "a row of a block");
    memcpy(memory[self->block] + to, &number, 2);
  }
}

// Registers: what a block begins with is shared anew.
struct Pool {
  int left = 0;
};
struct MyRegisters {
  int count = 65536 / launched.blocks / launched.threads / 8 * 8;
};
template <int kCount>
inline void release_registers() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
  int& count = of_thread<MyRegisters>().count;
  if (kCount > count) fail("gives up registers from %d to %d", count, kCount);
  of_block<Pool>().left += count - kCount, count = kCount;
  step_back();
}
template <int kCount>
inline void take_registers() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
  int& count = of_thread<MyRegisters>().count;
  if (kCount < count) fail("takes registers from %d to %d", count, kCount);
  const auto over = [](const Wait& w) { return static_cast<const Pool*>(w.on)->left >= w.value; };
  const auto tell = [](const Wait& w) { return std::to_string(w.value) + " more registers, of " + std::to_string(static_cast<const Pool*>(w.on)->left); };
  wait_until({over, tell, &of_block<Pool>(), kCount - count});
  of_block<Pool>().left -= kCount - count, count = kCount;
}

inline int held(int x) { return x; }

// Values that the compiler must not keep elsewhere.
template <class Values>
inline void pin(Values& values) {
  asm volatile("" ::"r"(&values) : "memory");
}

}  // namespace hc
