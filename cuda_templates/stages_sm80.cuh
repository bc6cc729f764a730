// A stage of shared memory: a tile of K of what a block multiplies, brought by cp.async as it lies in the tensors (sm_80 and newer).
//
//   rows of x     kPanels x [kTileM rows x 128 bytes], the chunks of 16 bytes of a row exchanged: chunk c of row r lies at c ^ r % 8
//   words         lines of fragments.cuh: [line][block of 64 rows][words]
//   groups        scales and zero points, as they lie: [group][64 rows of each block]
//
// Host side, the same bytes: gemm/stages.py.
#pragma once

#include "copies_sm80.cuh"
#include "experts.cuh"
#include "operands.cuh"
#include "scales.cuh"
#include "tasks.cuh"

namespace hc {

// kOfThreads: of a block.  kOfBlocks: blocks of 64 rows of W.  kOfRows, kOfColumns: rows of x, columns of K in a tile.
template <class L, int kOfThreads, int kOfBlocks, int kOfRows, int kOfColumns>
struct StageShape {
  using Line = Lines<L>;
  static constexpr int kThreads = kOfThreads, kBlocks = kOfBlocks, kTileM = kOfRows, kTileN = 64 * kBlocks, kTileK = kOfColumns;
  static constexpr int kTiles = ceil_to(L::shape_k, kTileK) / kTileK;
  // x
  static constexpr int kTileBytes = kTileK * L::act_bits / 8, kPanels = kTileBytes / 128, kPanelBytes = kTileM * 128;
  static constexpr int kChunks = 8 * kPanels, kRowsAtOnce = kThreads / kChunks, kRounds = ceil_to(kTileM, kRowsAtOnce) / kRowsAtOnce;
  // words
  static constexpr int kLines = kTileK / Line::kColumns, kLineWords = kBlocks * Line::kBlockWords;
  static constexpr bool kWholeK = L::shape_k % kTileK == 0, kWholeN = L::shape_n % kTileN == 0;
  // scales and zero points that change along K; others are read where they are
  static constexpr bool kScales = L::scale_place == ScalePlace::normal && L::group_k > 0;
  static constexpr bool kZeros = kScales && L::zero != Zero::none && L::zero_groups == 1;
  static constexpr int kGroups = L::group_k > 0 && L::group_k < kTileK ? kTileK / L::group_k : 1;
  static constexpr int kZeroBits = L::zero == Zero::floating ? 16 : L::zero_width;
  static constexpr int kScaleBytes = kScales ? kTileN * scale_bytes<L>() : 0;
  static constexpr int kZeroBytes = kZeros ? kTileN * kZeroBits / 8 : 0;
  static constexpr int kWordsAt = kPanels * kPanelBytes, kScalesAt = kWordsAt + 4 * kLines * kLineWords, kZerosAt = kScalesAt + kGroups * kScaleBytes;
  static constexpr int kStageBytes = ceil_to(kZerosAt + kGroups * kZeroBytes, 1024);  // wgmma wants panels at multiples of 1024

  static_assert(kTileBytes % 128 == 0 && kTileK % Line::kColumns == 0, "whole panels and lines");
  static_assert(kThreads % kChunks == 0, "whole rows of x at once");
};

// One factor for a row of W and a row of x over all of K: nothing is scaled on the way.
template <class L, class C>
HC_FN constexpr bool one_scale() {
  return C::flush >= L::shape_k && C::act_scale != ActScale::group;
}

// Where chunk `chunk` of row r of x is in the stage that begins at `stage`.
template <class S>
HC_FN u32 chunk_at(u32 stage, int r, int chunk) {
  return stage + chunk / 8 * S::kPanelBytes + r * 128 + ((chunk % 8) ^ (r % 8)) * 16;
}

// The rows of x that this thread copies.
template <class S, class C>
HC_FN void rows_of_thread(int (&rows)[S::kRounds], const TaskLists& lists, const RowTile& here) {
#pragma unroll
  for (int j = 0; j < S::kRounds; j++) {
    const int r = threadIdx.x / S::kChunks + j * S::kRowsAtOnce;
    rows[j] = r < S::kTileM ? x_row<C>(lists, row_of<C>(lists, here, here.first + r)) : -1;
  }
}

// Which stage a tile has, and which turn of it, odd or even. The first tile of a block has the first; then one after the other, without a division.
template <int kCount>
struct StageTurn {
  int stage = 0, parity = 0;

  HC_FN StageTurn next() const { return stage + 1 < kCount ? StageTurn{stage + 1, parity} : StageTurn{0, parity ^ 1}; }
};

// A line of groups, scales or zero points, of kBytes for the rows of a block, as a thread copies it: kRow bytes of all rows.
template <class S, class L, int kBytes, int kRow>
class GroupCopies {
  static_assert(kBytes % 16 == 0, "whole chunks");
  static constexpr int kOfGroup = kBytes / 16, kAll = S::kGroups * kOfGroup, kRounds = ceil_to(kAll, S::kThreads) / S::kThreads;
  static constexpr bool kOneAfterTheOther = S::kWholeK && kRounds == 1 && S::kTileK % L::group_k == 0;  // groups of a tile, tile by tile

  const u8* from;
  int first;

 public:
  HC_FN GroupCopies(const void* tensor, int first_byte, int tile) : from(static_cast<const u8*>(tensor) + first_byte), first(first_byte) {
    if constexpr (kOneAfterTheOther) from += (i64(tile) * S::kGroups + threadIdx.x / kOfGroup) * kRow + threadIdx.x % kOfGroup * 16;
  }

  HC_FN void next(u32 to, int tile) {
    if constexpr (kOneAfterTheOther) {
      const int c = threadIdx.x % kOfGroup;
      copy_16_if<0>(int(threadIdx.x) < kAll && (S::kWholeN || first + 16 * c < kRow), to + 16 * threadIdx.x, from);
      from += S::kGroups * i64(kRow);
    } else {
#pragma unroll
      for (int j = 0; j < kRounds; j++) {
        const int i = threadIdx.x + j * S::kThreads, c = i % kOfGroup, wanted = tile * S::kTileK / L::group_k + i / kOfGroup;
        const int group = S::kWholeK || wanted < L::groups ? wanted : L::groups - 1;
        copy_16_if<0>(i < kAll && (S::kWholeN || first + 16 * c < kRow), to + 16 * i, from + i64(group) * kRow + 16 * c);
      }
    }
  }
};
template <class S, class L, int kRow>
struct GroupCopies<S, L, 0, kRow> {
  HC_FN GroupCopies(const void*, int, int) {}
  HC_FN void next(u32, int) {}
};

// The copies of a thread, one tile of K after the other. What does not change from tile to tile is worked out once: with few rows there is little else to
// do, and a third of the instructions were these.
template <class S, class L>
class StageCopies {
  using Line = Lines<L>;
  static constexpr int kRowBytes = L::k * L::act_bits / 8, kChunksOfLine = S::kLineWords / 4, kChunksOfWords = S::kLines * kChunksOfLine;
  static constexpr int kWordRounds = ceil_to(kChunksOfWords, S::kThreads) / S::kThreads;
  static constexpr bool kWholeRows = S::kTiles * S::kTileBytes <= kRowBytes;              // of x: no tile goes beyond them
  static constexpr bool kSameChunk = S::kWholeK && S::kThreads % kChunksOfLine == 0;      // of each line that a thread copies from
  static_assert(kRowBytes % 16 == 0, "rows of x are whole chunks");

  const int (&rows)[S::kRounds];
  const int chunk;
  const u32 there;  // chunks of a line that are inside W
  int tile;
  const u8* columns;  // x from this thread's chunk of the tile on
  const u32* words;   // of the tile; where the chunk is the same, from that on
  GroupCopies<S, L, S::kScaleBytes, L::shape_n * scale_bytes<L>()> scales;
  GroupCopies<S, L, S::kZeroBytes, L::shape_n * S::kZeroBits / 8> zeros;

 public:
  // rows: of rows_of_thread.  first_tile: of `next`.
  HC_FN StageCopies(const void* x, const int (&of_rows)[S::kRounds], const Tensors& w, int first_n, int first_tile)
      : rows(of_rows),
        chunk(threadIdx.x % S::kChunks),
        there(u32(L::shape_n - first_n) / 64 * (Line::kBlockWords / 4)),
        tile(first_tile),
        columns(static_cast<const u8*>(x) + first_tile * S::kTileBytes + 16 * chunk),
        words(w.weight + i64(first_tile) * (S::kLines * Line::kPitch) + i64(first_n / 64) * Line::kBlockWords),
        scales(w.weight_scale, first_n * scale_bytes<L>(), first_tile),
        zeros(w.zero_point, first_n * S::kZeroBits / 8, first_tile) {
    if constexpr (kSameChunk) words += i64(threadIdx.x / kChunksOfLine) * Line::kPitch + threadIdx.x % kChunksOfLine * 4;
  }

  // The next tile, to a stage.
  HC_FN void next(u32 stage) {
    // Rows of x; what lies beyond K is 0, and a row that is not there. Its address is not read
#pragma unroll
    for (int j = 0; j < S::kRounds; j++) {
      const int r = threadIdx.x / S::kChunks + j * S::kRowsAtOnce;
      const bool is_there = rows[j] >= 0 && (kWholeRows || tile * S::kTileBytes + 16 * chunk < kRowBytes);
      if (S::kRounds * S::kRowsAtOnce <= S::kTileM || r < S::kTileM) copy_16(chunk_at<S>(stage, r, chunk), columns + i64(rows[j]) * kRowBytes, is_there);
    }
    columns += S::kTileBytes;
    copy_words(stage + S::kWordsAt);
    words += S::kLines * Line::kPitch;
    scales.next(stage + S::kScalesAt, tile);
    zeros.next(stage + S::kZerosAt, tile);
    tile++;
  }

 private:
  // Lines beyond K are the last one again, since any number times 0 is 0 where the row has no NaN; blocks beyond N stay as they are
  HC_FN void copy_words(u32 to) const {
    unrolled<0, kWordRounds>([&](auto round) {
      constexpr int j = decltype(round)::value;
      const u32 i = threadIdx.x + j * S::kThreads, c = i % kChunksOfLine;
      const bool wanted = ((j + 1) * S::kThreads <= kChunksOfWords || i < kChunksOfWords) && (S::kWholeN || c < there);
      if constexpr (kSameChunk) {
        copy_16_if<4 * j * (S::kThreads / kChunksOfLine) * Line::kPitch>(wanted, to + 16 * i, words);
      } else {
        int line = i / kChunksOfLine;
        if constexpr (!S::kWholeK) line = tile * S::kLines + line < Line::kCount ? line : Line::kCount - 1 - tile * S::kLines;
        copy_16_if<0>(wanted, to + 16 * i, words + line * Line::kPitch + 4 * c);
      }
    });
  }
};

// Where columns of K begin: in K, and in their tile.
struct Columns {
  int first;
  u32 in_tile;
};

// Neighbours in order "64", which rows n + g, n + 8 + g, ... n + 56 + g are: kCount of these eight from place `from` on, kBits each, as words.
template <int kBits, int kCount>
struct NeighboursOfLane {
  static constexpr int kWords = kCount * kBits / 32;
  u32 words[kWords ? kWords : 1];

  HC_FN void load(const u8* group, int block, int g, int from) {
    if constexpr (kWords) {
      load_words<kWords>(words, reinterpret_cast<const u32*>(group) + ((block * 8 + g) * 8 + from) * kBits / 32);
    } else {
      words[0] = reinterpret_cast<const u16*>(group)[((block * 8 + g) * 8 + from) * kBits / 16];
    }
  }
  // Two of at most 8 bits each, side by side; other bits may lie beyond.
  template <int j>
  HC_FN u32 pair() const {
    static_assert(kBits <= 8 && j % 2 == 0, "two in half a word");
    return words[j * kBits / 32] >> (j * kBits % 32);
  }
  template <int j>
  HC_FN u32 bits() const {
    return kBits == 32 ? words[j] : words[j * kBits / 32] >> (j * kBits % 32) & ((1u << kBits % 32) - 1);
  }
};

// The scales of rows n0 + 16 i + 8 h + g of a lane for the columns from k on, which lie in the stage or in the tensor. n0: of a block of 64 rows.
// kTiles row tiles from `from` on.
template <class S, class L, int kTiles>
HC_FN void scales_of_lane(float (&to)[kTiles][2], const u8* stage, const Tensors& w, int n0, int first_n, int g, const Columns& k, int from = 0) {
  NeighboursOfLane<8 * scale_bytes<L>(), 2 * kTiles> held;
  if constexpr (S::kScales) held.load(stage + S::kScalesAt + k.in_tile / L::group_k * S::kScaleBytes, (n0 - first_n) / 64, g, 2 * from);
  if constexpr (S::kScales && (L::scale_type == ScaleType::e4m3 || L::scale_type == ScaleType::e5m2)) {
    // two at once, as float16, which holds them
    unrolled<0, kTiles>([&](auto row_tile) {
      constexpr int i = decltype(row_tile)::value;
      const u32 both = f16_scales<L::scale_type>(held.template pair<2 * i>());
      to[i][0] = half_to_float<Half::f16>(u16(both)), to[i][1] = half_to_float<Half::f16>(u16(both >> 16));
    });
    return;
  }
  unrolled<0, 2 * kTiles>([&](auto of_lane) {
    constexpr int j = decltype(of_lane)::value;
    if constexpr (S::kScales) {
      const u32 bits = held.template bits<j>();
      to[j / 2][j % 2] = weight_scale_at<L>(&bits, 0);
    } else {
      to[j / 2][j % 2] = weight_scale<L>(w.weight_scale, n0 + 16 * from + 8 * j + g, weight_group<L>(k.first));
    }
  });
}

// What `operand` wants beside the codes of the same rows.
template <class S, class L, int kTiles>
HC_FN void zeros_of_lane(u32 (&to)[kTiles][2], const u8* stage, const Tensors& w, int n0, int first_n, int g, const Columns& k, int from = 0) {
  constexpr bool kHeld = S::kZeros && L::zero == Zero::integer;
  NeighboursOfLane<kHeld ? S::kZeroBits : 8, 2 * kTiles> held;
  if constexpr (kHeld) held.load(stage + S::kZerosAt + k.in_tile / L::group_k * S::kZeroBytes, (n0 - first_n) / 64, g, 2 * from);
  unrolled<0, 2 * kTiles>([&](auto of_lane) {
    constexpr int j = decltype(of_lane)::value;
    to[j / 2][j % 2] = kHeld ? held.template bits<j>() : operand_zero<L>(w.zero_point, n0 + 16 * from + 8 * j + g, k.first);
  });
}

// The floating zero point of row n.
template <class S, class L>
HC_FN float floating_zero_of(const u8* stage, const Tensors& w, int n, int first_n, const Columns& k) {
  static_assert(L::zero == Zero::floating, "a floating zero point");
  if constexpr (S::kZeros) {
    const u8* group = stage + S::kZerosAt + k.in_tile / L::group_k * S::kZeroBytes;
    return decode_half(reinterpret_cast<const u16*>(group)[order_64(n - first_n)], L::half);
  } else {
    return floating_zero<L>(w.zero_point, n, weight_group<L>(k.first));
  }
}

}  // namespace hc
