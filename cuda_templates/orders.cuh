// Orders of N: where row n is in a scale, zero point, secondary scale or bias row (layouts.md 6, 8; 5.0 c for PPU).
#pragma once

#include "config.cuh"

namespace hc {

// PPU: each run of 8 holds its old rows 0 2 4 6 1 3 5 7.
HC_FN int ppu_row(int n) {
  const int run = n / 8 * 8, r = n % 8;
  return run + (r % 2 == 0 ? r / 2 : 4 + r / 2);
}

// Order "64": 0 8 16 24 32 40 48 56 1 9 17 ...
HC_FN int order_64(int n) {
  const int m = n % 64;
  return n - m + 8 * (m % 8) + m / 8;
}

// Order "C": 0 1 8 9 16 17 24 25 2 3 10 11 ...
HC_FN int order_c(int n) {
  const int m = n % 32;
  return n - m + 8 * (m % 8 / 2) + 2 * (m / 8) + m % 2;
}

template <class L>
HC_FN int normal_order(int n) {
  return order_64(L::ppu ? ppu_row(n) : n);
}

}  // namespace hc
