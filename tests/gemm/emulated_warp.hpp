// In the place of warp_sm80.cuh: the tensor cores of a warp.
#pragma once

#include "emulated_numbers.hpp"
#include "emulated_threads.hpp"

namespace hc {

struct Lane {
  u32 a[4], b[2], address;
};
struct Lanes {
  Lane given[2][1024];
  int parity[1024] = {};
};

// What each lane of this warp gives; the others' as soon as all have given theirs.
inline const Lane* exchanged(const Lane& mine) {
  auto& lanes = of_block<Lanes>();
  const int i = self->thread, parity = lanes.parity[i] ^= 1;
  lanes.given[parity][i] = mine;
  meet_warp();
  return lanes.given[parity] + i / 32 * 32;
}

// Lane 4 * g + t has of A: words t of the first and the second 16 bytes of rows g (a[0], a[2]) and g + 8 (a[1], a[3]); of B: of row g.
template <Operand kOperand, class Sum>
void multiply(Sum (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  constexpr int kEach = 32 / bits_of<kOperand>();
  const Lane* lanes = exchanged({{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, 0});
  const int g = self->thread % 32 / 4, t = self->thread % 4;
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
  const int g = self->thread % 32 / 4, t = self->thread % 4;
  for (int i = 0; i < 2 * kPairs; i++) memcpy(&to[i / 2][i % 2], memory[self->block] + lanes[8 * i + g].address + 4 * t, 4);
}

}  // namespace hc
