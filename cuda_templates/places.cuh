// Where the bits of the weight code of (n, k) are, in every place, interleave and width (layouts.md 5.2 to 5.6).
// In: one expert's words and n < shape_n, k < shape_k.  Out: the placed code, before the maps of codes.cuh are undone.
#pragma once

#include "orders.cuh"

namespace hc {

// A bit of one lane's sub-block: word 0..B-1, bit 0..31.
struct BitPlace {
  int word, bit;
};

// Bit i of code t (0..31) of a sub-block (layouts.md 5.2, 5.3).
//
//   t -> padded word j and p0 in it -> field: pm where interleaved, p0 where not; mode 2 interleaves the top bit alone.
//   A field is W bits wide (W: power of two >= B); for odd widths the padded words of a field column become B words (5.3).
template <class L>
HC_FN constexpr BitPlace bit_place(int t, int i) {
  constexpr int B = L::bits, A = L::act_bits;
  constexpr int W = B == 1 ? 1 : B == 2 ? 2 : B <= 4 ? 4 : 8;
  constexpr int kCodes = 32 / W, kColumns = 32 / A, kRatio = A / W;
  static_assert(W <= A, "codes wider than the activation have no place (layouts.md 5.7)");
  const int j = t / kCodes, p0 = t % kCodes;
  const int mixed = p0 % kColumns * kRatio + p0 / kColumns;
  const bool top = i == B - 1;
  const int field = L::interleave == Interleave::mode3   ? mixed
                    : L::interleave == Interleave::mode2 ? (top ? mixed : p0)
                                                         : p0;
  const int start = j * B, used = start % W, free = W - used;
  if (B <= free) return {start / W, field * W + used + i};
  const int rest = B - free;  // these low bits go on in the next word
  return i >= rest ? BitPlace{start / W, field * W + used + i - rest} : BitPlace{start / W + 1, field * W + i};
}

// Tiles of 64 rows; a lane owns 32 codes of a sub-block (layouts.md 5.1, 5.2, 5.4).
template <class L>
HC_FN u32 code_in_tiles(const u32* words, int n, int k) {
  constexpr int B = L::bits, A = L::act_bits, kTile = 256 / A, kColumns = 32 / A;
  const int X = n / 64, o = n % 64 / 8, y = k / kTile, q = k % kTile;
  const int lane = 4 * (n % 8) + q % (kTile / 2) / kColumns;
  const int i2 = o / (A / 2), i3 = o % (A / 2) / 2, i4 = o % 2, i5 = q / (kTile / 2), i6 = q % kColumns;
  const int t = ((i3 * 2 + (L::swapped ? i5 : i4)) * 2 + (L::swapped ? i4 : i5)) * kColumns + i6;
  u32 code = 0;
#pragma unroll
  for (int i = 0; i < B; i++) {
    const BitPlace at = bit_place<L>(t, i);
    int word;
    if constexpr (L::place == Place::standard) {
      word = y * L::row_words + X * (512 * B / A) + i2 * 32 * B + lane * B + at.word;
    } else {
      constexpr int kHalf = B / 2 == 0 ? 1 : B / 2;  // packed K: B is even; two tiles of K share a row
      const int row = k / 64, i1 = k % 64 / 32, h = at.word / kHalf;
      word = row * L::row_words + X * 128 * B + (2 * i2 + h) * 32 * B + lane * B + i1 * kHalf + at.word % kHalf;
    }
    code |= (words[word] >> at.bit & 1u) << i;
  }
  return code;
}

// Rows are bit strings: raw as they are (5.5), flat with chunks of four words of every row outermost (5.6).
template <class L>
HC_FN u32 code_in_rows(const u32* words, int n, int k) {
  constexpr int B = L::bits;
  u32 code = 0;
#pragma unroll
  for (int i = 0; i < B; i++) {
    const int bit = k * B + i, w = bit / 32;
    const int word = L::place == Place::raw ? n * L::row_words + w : (w / 4 * L::shape_n + n) * 4 + w % 4;
    code |= (words[word] >> (bit % 32) & 1u) << i;
  }
  return code;
}

template <class L>
HC_FN u32 placed_code(const u32* words, int n, int k) {
  const int row = L::ppu && L::place != Place::flat ? ppu_row(n) : n;
  if constexpr (L::place == Place::standard || L::place == Place::packed_k) {
    return code_in_tiles<L>(words, row, k);
  } else {
    return code_in_rows<L>(words, row, k);
  }
}

}  // namespace hc
