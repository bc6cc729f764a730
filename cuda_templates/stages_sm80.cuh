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
    rows[j] = r < S::kTileM ? row_of<C>(lists, here, here.first + r) : -1;
  }
}

// Lines of groups, kBytes of each for the rows of this block: of `row_bytes` there are in a line, from `first` on.
template <class S, class L, int kBytes>
HC_FN void copy_groups(u32 to, const void* from, int row_bytes, int first, int tile) {
  if constexpr (kBytes > 0) {
    static_assert(kBytes % 16 == 0, "whole chunks");
    for (int i = threadIdx.x; i < S::kGroups * (kBytes / 16); i += S::kThreads) {
      const int c = i % (kBytes / 16), wanted = tile * S::kTileK / L::group_k + i / (kBytes / 16);
      const int group = wanted < L::groups ? wanted : L::groups - 1;
      if (first + 16 * c < row_bytes) copy_16(to + 16 * i, static_cast<const u8*>(from) + i64(group) * row_bytes + first + 16 * c, true);
    }
  }
}

// Copies of tile `tile` of K into a stage.
template <class S, class L>
HC_FN void copy_stage(u32 stage, const u8* x, const int (&rows)[S::kRounds], const Tensors& w, int first_n, int tile) {
  using Line = Lines<L>;
  constexpr int kRowBytes = L::k * L::act_bits / 8;
  static_assert(kRowBytes % 16 == 0, "rows of x are whole chunks");
  // Rows of x; what lies beyond K is 0
  const int chunk = threadIdx.x % S::kChunks, column = tile * S::kTileBytes + 16 * chunk;
#pragma unroll
  for (int j = 0; j < S::kRounds; j++) {
    const int r = threadIdx.x / S::kChunks + j * S::kRowsAtOnce;
    const bool there = rows[j] >= 0 && column < kRowBytes;
    const u32 to = chunk_at<S>(stage, r, chunk);
    if (r < S::kTileM) copy_16(to, x + (there ? i64(rows[j]) * kRowBytes + column : 0), there);
  }
  // Words; lines beyond K are the last one again, since any number times 0 is 0 where the row has no NaN; blocks beyond N stay as they are
  constexpr int kChunksOfLine = S::kLineWords / 4;
  const int there = (L::shape_n - first_n) / 64 * (Line::kBlockWords / 4);
  const u32 base = stage + S::kWordsAt;
#pragma unroll 4
  for (int i = threadIdx.x; i < S::kLines * kChunksOfLine; i += S::kThreads) {
    const int c = i % kChunksOfLine, wanted = tile * S::kLines + i / kChunksOfLine, line = wanted < Line::kCount ? wanted : Line::kCount - 1;
    if (c < there) copy_16(base + 16 * i, w.weight + line * Line::kPitch + i64(first_n / 64) * Line::kBlockWords + 4 * c, true);
  }
  copy_groups<S, L, S::kScaleBytes>(stage + S::kScalesAt, w.weight_scale, L::shape_n * scale_bytes<L>(), first_n * scale_bytes<L>(), tile);
  copy_groups<S, L, S::kZeroBytes>(stage + S::kZerosAt, w.zero_point, L::shape_n * S::kZeroBits / 8, first_n * S::kZeroBits / 8, tile);
}

// The scale of row n for the columns from k0 on, which lie in the stage or in the tensor.
template <class S, class L>
HC_FN float scale_of(const u8* stage, const Tensors& w, int n, int first_n, int k0) {
  if constexpr (S::kScales) {
    return weight_scale_at<L>(stage + S::kScalesAt, k0 % S::kTileK / L::group_k * S::kTileN + order_64(n - first_n));
  } else {
    return weight_scale<L>(w.weight_scale, n, weight_group<L>(k0));
  }
}

// What `operand` wants beside the codes of row n.
template <class S, class L>
HC_FN u32 zero_of(const u8* stage, const Tensors& w, int n, int first_n, int k0) {
  if constexpr (S::kZeros && L::zero == Zero::integer) {
    return u32(integer_zero_at<L>(stage + S::kZerosAt + k0 % S::kTileK / L::group_k * S::kZeroBytes, order_64(n - first_n)));
  } else {
    return operand_zero<L>(w.zero_point, n, k0);
  }
}

// The floating zero point of row n.
template <class S, class L>
HC_FN float floating_zero_of(const u8* stage, const Tensors& w, int n, int first_n, int k0) {
  static_assert(L::zero == Zero::floating, "a floating zero point");
  if constexpr (S::kZeros) {
    const u8* group = stage + S::kZerosAt + k0 % S::kTileK / L::group_k * S::kZeroBytes;
    return decode_half(reinterpret_cast<const u16*>(group)[order_64(n - first_n)], L::half);
  } else {
    return floating_zero<L>(w.zero_point, n, weight_group<L>(k0));
  }
}

}  // namespace hc
