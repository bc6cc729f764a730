// The words of a lane, a whole one at a time, and the codes of one operand register from them (layouts.md 5.1 to 5.6).
//
// A warp owns a block of 64 rows, four row tiles of 16. lane = 4 * g + t holds of row tile i, in a K tile of 256 / A columns, the registers
//
//     r = 0: row 16 i + g, columns c t ...    r = 1: row 16 i + g + 8    r = 2, 3: the same rows, c t + 128 / A ...      c = 32 / A
//
// each with c neighbours of K, A bits apart: what a warp-wide multiplication of 16 rows wants, and what the repack layouts were made for. There
// a lane's 128 codes are neighbouring words; interleave mode 3 puts the c codes of a register into one place of each A bits, so that a shift
// and a mask serve them all (native order: one by one). In flat order a register is a word of a row, or half a word where codes are half as wide
// as activations.
#pragma once

#include "places.cuh"

namespace hc {

// The same bits in each A-bit part of a word.
template <int A>
HC_FN constexpr u32 in_each(u32 bits) {
  static_assert(A == 4 || A == 8 || A == 16, "operands of 4, 8 or 16 bits");
  return bits * (A == 16 ? 0x00010001u : A == 8 ? 0x01010101u : 0x11111111u);
}

// How many bits of code t from bit i on are neighbours in one word.
template <class L>
HC_FN constexpr int run_of(int t, int i) {
  int n = 1;
  const BitPlace first = bit_place<L>(t, i);
  while (i + n < L::bits && bit_place<L>(t, i + n).word == first.word && bit_place<L>(t, i + n).bit == first.bit + n) n++;
  return n;
}

// Codes t, t + 1, ... of a sub-block, one in each A bits, from bit i on; beside them the bits kMore.
template <class L, int t, u32 kMore, int i = 0>
HC_FN u32 gather(const u32* sub_block) {
  constexpr BitPlace at = bit_place<L>(t, i), next = bit_place<L>(t + 1, i);
  static_assert(next.word == at.word && next.bit == at.bit + L::act_bits, "neighbours of K lie A bits apart");
  constexpr int kRun = run_of<L>(t, i), kRight = at.bit - i;
  constexpr u32 kMask = in_each<L::act_bits>(((1u << kRun) - 1) << i);
  const u32 word = sub_block[at.word];
  const u32 moved = kRight > 0 ? word >> (kRight & 31) : word << (-kRight & 31);
  if constexpr (i + kRun < L::bits) {
    return (moved & kMask) | gather<L, t, kMore, i + kRun>(sub_block);
  } else {
    return kMore ? and_or(moved, kMask, kMore) : moved & kMask;
  }
}

// Code t of a sub-block, from bit i on.
template <class L, int t, int i = 0>
HC_FN u32 gather_one(const u32* sub_block) {
  if constexpr (i >= L::bits) {
    return 0;
  } else {
    constexpr BitPlace at = bit_place<L>(t, i);
    constexpr int kRun = run_of<L>(t, i);
    return (sub_block[at.word] >> at.bit & ((1u << kRun) - 1)) << i | gather_one<L, t, i + kRun>(sub_block);
  }
}

// Lines of words: what lies side by side for one or two K tiles and neighbouring blocks of 64 rows.
template <class L>
struct Lines {
  static constexpr int A = L::act_bits, B = L::bits, kTileK = 256 / A;
  static constexpr bool kFlat = L::place == Place::flat;
  static constexpr int kColumns = kFlat ? 128 / B : L::place == Place::packed_k ? 64 : kTileK;
  static constexpr int kBlockWords = kFlat ? 256 : 2 * B * kColumns;  // of 64 rows
  static constexpr i64 kPitch = kFlat ? 4 * i64(L::shape_n) : L::row_words;
  static constexpr int kCount = L::shape_k / kColumns;
};

// kCount neighbouring words, in pieces as wide as their number allows: what is read starts at a multiple of it.
template <int kCount>
HC_FN void load_words(u32* to, const u32* from) {
  constexpr int kWide = kCount % 4 == 0 ? 4 : kCount % 2 == 0 ? 2 : 1;
  struct alignas(4 * kWide) Piece {
    u32 words[kWide];
  };
#pragma unroll
  for (int j = 0; j < kCount; j += kWide) {
    const Piece piece = *reinterpret_cast<const Piece*>(from + j);
#pragma unroll
    for (int i = 0; i < kWide; i++) to[j + i] = piece.words[i];
  }
}

// One lane's words of a block and a K tile.
template <class L>
struct LaneWords {
  static constexpr int A = L::act_bits, B = L::bits;
  static constexpr int kSubBlocks = A == 16 ? 1 : A == 8 ? 2 : 4;  // 64, 32 or 16 rows each
  u32 words[Lines<L>::kFlat ? 16 : kSubBlocks * B];

  // Whether row tiles 0, 1 and 2, 3 have words of their own.
  static constexpr bool kHalves = L::place == Place::flat || A < 16 || B % 2 == 0;

  // lines: the words of this block, line 0 of them; pitch: from one line to the next; tile: the K tile, counted from line 0.
  // kTiles 4: of all row tiles. 2: of the two from 2 * part on, in the places of 0 and 1.
  template <int kTiles = 4>
  HC_FN void load(const u32* lines, int pitch, int tile, int lane, int part = 0) {
    static_assert(kTiles == 4 || kHalves, "these row tiles share words");
    if constexpr (L::place == Place::standard) {
      constexpr int kOfTiles = kSubBlocks * B * kTiles / 4, kPieces = kSubBlocks == 1 ? 1 : kSubBlocks * kTiles / 4;
      const u32* from = lines + tile * pitch + lane * B + (kSubBlocks == 1 ? part * kOfTiles : part * kPieces * 32 * B);
#pragma unroll
      for (int j = 0; j < kPieces; j++) load_words<kOfTiles / kPieces>(words + j * B, from + j * 32 * B);
    } else if constexpr (L::place == Place::packed_k) {
      constexpr int kHalf = B / 2;  // a lane's words of two K tiles lie side by side, for 16 rows
      const u32* from = lines + tile / 2 * pitch + lane * B + tile % 2 * kHalf + part * kTiles * 32 * B;
#pragma unroll
      for (int j = 0; j < kTiles; j++) load_words<kHalf>(words + j * kHalf, from + j * 32 * B);
    } else {
      const int g = lane / 4, t = lane % 4;
#pragma unroll
      for (int j = 0; j < 4 * kTiles; j++) {
        const int row = (part * kTiles + j / 4) * 16 + j % 2 * 8 + g, half = j % 4 / 2;
        words[j] = B == A ? lines[(2 * tile + half) * pitch + row * 4 + t] : lines[tile * pitch + row * 4 + 2 * half + t / 2];
      }
    }
  }

  // Whether each row tile has words of its own.
  static constexpr bool kQuarters = L::place != Place::standard || (kSubBlocks * B) % 4 == 0;

  // The words of row tile i alone, in the places of those of row tile 0.
  HC_FN void load_row_tile(const u32* lines, int pitch, int tile, int lane, int i) {
    static_assert(kQuarters, "row tiles share words");
    if constexpr (L::place == Place::standard) {
      constexpr int kOfTile = kSubBlocks * B / 4, kTilesOfSubBlock = 4 / kSubBlocks;
      load_words<kOfTile>(words, lines + tile * pitch + i / kTilesOfSubBlock * 32 * B + lane * B + i % kTilesOfSubBlock * kOfTile);
    } else if constexpr (L::place == Place::packed_k) {
      constexpr int kHalf = B / 2;
      load_words<kHalf>(words, lines + tile / 2 * pitch + i * 32 * B + lane * B + tile % 2 * kHalf);
    } else {
      const int g = lane / 4, t = lane % 4;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int row = 16 * i + j % 2 * 8 + g, half = j / 2;
        words[j] = B == A ? lines[(2 * tile + half) * pitch + row * 4 + t] : lines[tile * pitch + row * 4 + 2 * half + t / 2];
      }
    }
  }

  // Which code of a sub-block is the first of register r of row tile i.
  static HC_FN constexpr int first_code(int i, int r) {
    const int i3 = A == 16 ? i : A == 8 ? i % 2 : 0, i4 = r % 2, i5 = r / 2;
    return ((i3 * 2 + (L::swapped ? i5 : i4)) * 2 + (L::swapped ? i4 : i5)) * (32 / A);
  }

  // Where register r of row tile i begins in the words, if its codes are whole fields of one word there.
  static constexpr bool kFields = L::place != Place::flat && L::interleave == Interleave::mode3 && run_of<L>(0, 0) == B && 32 % B == 0;
  static HC_FN constexpr BitPlace field(int i, int r) { return bit_place<L>(first_code(i, r), 0); }

  // The word of register r of row tile i, its codes from bit kTo of each A bits on; other bits as they come.
  template <int i, int r, int kTo>
  HC_FN u32 moved() const {
    static_assert(kFields, "whole fields");
    constexpr BitPlace at = field(i, r);
    const u32 word = words[(A == 16 ? 0 : A == 8 ? i / 2 : i) * B + at.word];
    return at.bit > kTo ? word >> (at.bit - kTo & 31) : word << (kTo - at.bit & 31);
  }

  // The codes of register r of row tile i, one in the low bits of each A bits; beside them the bits kMore.
  template <int i, int r, u32 kMore = 0>
  HC_FN u32 codes(int lane) const {
    if constexpr (L::interleave == Interleave::native) {
      static_assert(A == 16 && L::place == Place::standard, "native order is beside 16-bit activations");
      return gather_one<L, first_code(i, r)>(words) | gather_one<L, first_code(i, r) + 1>(words) << 16 | kMore;
    } else if constexpr (L::place != Place::flat) {
      return gather<L, first_code(i, r), kMore>(words + (A == 16 ? 0 : A == 8 ? i / 2 : i) * B);
    } else if constexpr (B == A) {
      return words[4 * i + r] | kMore;
    } else {
      const u32 half = words[4 * i + r] >> (lane % 2 * 16) & 0xFFFFu, bytes = (half | half << 8) & 0x00FF00FFu;
      const u32 nibbles = (bytes | bytes << 4) & 0x0F0F0F0Fu;
      return (A == 8 ? nibbles : (nibbles | nibbles << 2) & 0x33333333u) | kMore;
    }
  }

  // Mode 2: the word of register r of row tile i; its low bits are in order, four nibbles from `16 * (r / 2)` on (operands.cuh).
  template <int i, int r>
  HC_FN u32 whole() const {
    return words[i / 2 * B + i % 2 * 2 + r % 2];
  }
};

}  // namespace hc
