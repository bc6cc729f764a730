// The Hopper kernel family: wgmma on weights in standard, packed K and flat order, beside 16-bit, E4M3 and 8-bit integer activations.
//
// A block makes 64 rows of W for each warp x kTileM rows of x. Weights are operand A, from registers: a warp reads the words of its own 64 rows
// as they lie on disk and turns them into operands a register at a time (fragments.cuh, operands.cuh). Rows of x are operand B, in shared memory.
// Both come by cp.async, kStages tiles of K ahead.
// As in mma_any, operands are exact and scales stay outside: sums over at most a group are float32 (int32 beside integers) and are scaled as they are
// added up.  What it takes, and why not: gemm/wgmma_sm90a.py.
//
//   stage:  kPanels x [kTileM rows x 128 bytes of x, swizzled]
//           lines of words: [line][block of 64 rows][words]
//           scales and zero points of groups, as they lie: [group][64 rows of each block]
#pragma once

#include "copies_sm80.cuh"
#include "experts.cuh"
#include "operands.cuh"
#include "scales.cuh"
#include "tasks.cuh"
#include "warpgroup_sm90a.cuh"

namespace hc {

template <class L, class C, class T>
struct WgmmaShape {
  using Line = Lines<L>;
  static constexpr int kThreads = T::threads, kBlocks = T::threads / 32, kTileM = T::tile_m, kTileN = 64 * kBlocks, kTileK = T::tile_k;
  // x
  static constexpr int kBytes = L::act_bits / 8, kPanels = kTileK * kBytes / 128, kPanelBytes = kTileM * 128;
  static constexpr int kChunks = 8 * kPanels, kRowsAtOnce = kThreads / kChunks, kRounds = ceil_to(kTileM, kRowsAtOnce) / kRowsAtOnce;
  // words
  static constexpr int kLines = kTileK / Line::kColumns, kLineWords = kBlocks * Line::kBlockWords;
  // scales and zero points that change along K; others are read where they are
  static constexpr bool kScales = L::scale_place == ScalePlace::normal && L::group_k > 0;
  static constexpr bool kZeros = kScales && L::zero == Zero::integer && L::zero_groups == 1;
  static constexpr int kGroups = L::group_k > 0 && L::group_k < kTileK ? kTileK / L::group_k : 1;
  static constexpr int kScaleBytes = kScales ? kTileN * scale_bytes<L>() : 0, kZeroBytes = kZeros ? kTileN * L::zero_width / 8 : 0;
  static constexpr int kWordsAt = kPanels * kPanelBytes, kScalesAt = kWordsAt + 4 * kLines * kLineWords, kZerosAt = kScalesAt + kGroups * kScaleBytes;
  static constexpr int kStageBytes = ceil_to(kZerosAt + kGroups * kZeroBytes, 1024);  // panels begin at multiples of 1024
  // K: a segment is multiplied by one scale of each row; a step is one instruction
  static constexpr int kStep = 256 / L::act_bits, kTiles = ceil_to(L::shape_k, kTileK) / kTileK;
  static constexpr int kSegment = C::flush < 4 * kStep ? C::flush : 4 * kStep, kSegments = kTileK / kSegment, kSteps = kSegment / kStep;
  // row tiles that are multiplied at once: as many as registers allow, since one alone waits for itself
  static constexpr int kBatch = kTileM <= 16 ? 4 : kTileM <= 32 ? 2 : 1, kBatches = 4 / kBatch;
  // one scale for all of K: nothing is scaled on the way, except that E4M3 sums are short of bits and are added up in float32
  static constexpr bool kWhole = C::flush >= L::shape_k && C::operand != Operand::e4m3;

  static_assert(kThreads % 128 == 0, "whole warpgroups");
  static_assert(kTileK * kBytes % 128 == 0 && kTileK % Line::kColumns == 0, "whole panels and lines");
  static_assert(kSegment % kStep == 0 && kTileK % kSegment == 0 && C::flush % kSegment == 0, "segments lie inside groups of scales");
  static_assert(T::shared == T::stages * kStageBytes + 1024, "gemm/wgmma_sm90a.py counts the same bytes");
};

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
  constexpr int kRowBytes = L::k * S::kBytes;
  static_assert(kRowBytes % 16 == 0, "rows of x are whole chunks");
  // Rows of x; what lies beyond K is 0
  const int chunk = threadIdx.x % S::kChunks, column = tile * S::kTileK * S::kBytes + 16 * chunk;
#pragma unroll
  for (int j = 0; j < S::kRounds; j++) {
    const int r = threadIdx.x / S::kChunks + j * S::kRowsAtOnce;
    const bool there = rows[j] >= 0 && column < kRowBytes;
    const u32 to = stage + chunk / 8 * S::kPanelBytes + r * 128 + ((chunk % 8) ^ (r % 8)) * 16;
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
  copy_groups<S, L, S::kZeroBytes>(stage + S::kZerosAt, w.zero_point, L::shape_n * L::zero_width / 8, first_n * L::zero_width / 8, tile);
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

template <class S, class L>
HC_FN u32 zero_of(const u8* stage, const Tensors& w, int n, int first_n, int k0) {
  if constexpr (S::kZeros) {
    return u32(integer_zero_at<L>(stage + S::kZerosAt + k0 % S::kTileK / L::group_k * S::kZeroBytes, order_64(n - first_n)));
  } else {
    return operand_zero<L>(w.zero_point, n, k0);
  }
}

template <class L, class C, class T>
__device__ void wgmma_sm90a(const void* x, const Tensors& all, const float* x_scale, const TaskLists& lists, void* y, int m) {
  using S = WgmmaShape<L, C, T>;
  using Line = Lines<L>;
  constexpr int kSums = S::kTileM / 2;
  constexpr bool kIntegers = C::operand == Operand::s8;
  constexpr int kActGroups = C::act_group ? ceil_to(L::k, C::act_group ? C::act_group : 1) / (C::act_group ? C::act_group : 1) : 1;
  constexpr float kUnit = operand_unit<L, C::operand>();
  extern __shared__ u8 shared[];
  u8* const stages = shared + (1024 - shared_address(shared) % 1024) % 1024;

  // This block, this warp, this lane
  const RowTile here = tile_of<L, C, S::kTileM>(lists, blockIdx.y, m);
  if (here.expert < 0) return;
  const Tensors w = of_expert<L>(all, here.expert);
  const int first_n = blockIdx.x * S::kTileN, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int warp_n = first_n + 64 * warp;
  const bool alive = warp_n < L::shape_n;  // blocks beyond N are multiplied with the others, and thrown away
  int rows[S::kRounds];
#pragma unroll
  for (int j = 0; j < S::kRounds; j++) {
    const int r = threadIdx.x / S::kChunks + j * S::kRowsAtOnce;
    rows[j] = r < S::kTileM ? row_of<C>(lists, here, here.first + r) : -1;
  }
  const auto copy = [&](int tile) {
    if (tile < S::kTiles) {
      copy_stage<S, L>(shared_address(stages + tile % T::stages * S::kStageBytes), static_cast<const u8*>(x), rows, w, first_n, tile);
    }
    close_copies();
  };

  using Sum = typename Choose<kIntegers, int, float>::type;
  float total[4][kSums] = {};
  Sum part[S::kWhole ? 4 : S::kBatch][kSums] = {};
  for (int tile = 0; tile < T::stages - 1; tile++) copy(tile);
  for (int tile = 0; tile < S::kTiles; tile++) {
    // Wait for this stage; the one before is free now
    wait_for_copies<T::stages - 2>();
    publish_to_tensor_cores();
    __syncthreads();
    copy(tile + T::stages - 1);
    const u8* stage = stages + tile % T::stages * S::kStageBytes;
    const u32* lines = reinterpret_cast<const u32*>(stage + S::kWordsAt) + warp * Line::kBlockWords;

#pragma unroll
    for (int s = 0; s < S::kSegments; s++) {
      const int k0 = tile * S::kTileK + s * S::kSegment;
      if (k0 >= L::shape_k) break;
      // Words of this segment: all that four row tiles need
      LaneWords<L> held[S::kSteps];
#pragma unroll
      for (int step = 0; step < S::kSteps; step++) held[step].load(lines, S::kLineWords, s * S::kSteps + step, lane);
      u32 a[S::kBatches == 1 ? 1 : 2][S::kBatch][S::kSteps][4];
      const auto make_operands = [&](auto batch) {
        constexpr int kNow = decltype(batch)::value;
        unrolled<0, S::kBatch>([&](auto of_batch) {
          constexpr int j = decltype(of_batch)::value, i = kNow * S::kBatch + j;
          const int n = alive ? warp_n + 16 * i + g : first_n + g;
          const u32 zero[2] = {zero_of<S, L>(stage, w, n, first_n, k0), zero_of<S, L>(stage, w, n + 8, first_n, k0)};
#pragma unroll
          for (int step = 0; step < S::kSteps; step++) {
            unrolled<0, 4>([&](auto r) {
              constexpr int kRegister = decltype(r)::value;
              a[kNow % 2][j][step][kRegister] = operand<L, C::operand, i, kRegister>(held[step], lane, zero[kRegister % 2]);
            });
          }
        });
      };

      make_operands(Constant<0>());
      unrolled<0, S::kBatches>([&](auto batch) {
        constexpr int kNow = decltype(batch)::value, kFirst = kNow * S::kBatch, kPart = S::kWhole ? kFirst : 0;
        // Multiply
        unrolled<0, S::kBatch>([&](auto i) { pin(part[kPart + i.value]); });
        ready();
#pragma unroll
        for (int step = 0; step < S::kSteps; step++) {
          constexpr int kPanelSteps = 128 / 32;
          const int at = s * S::kSteps + step;
          const u64 b = describe_rows(shared_address(stage + at / kPanelSteps * S::kPanelBytes) + at % kPanelSteps * 32);
          unrolled<0, S::kBatch>([&](auto i) {
            wgmma<C::operand, S::kTileM>(part[kPart + i.value], a[kNow % 2][i.value][step], b, S::kWhole || step > 0);
          });
        }
        close_products();
        // Meanwhile the next row tiles
        if constexpr (kNow + 1 < S::kBatches) {
          make_operands(Constant<kNow + 1>());
          unrolled<0, S::kBatch>([&](auto i) { pin(a[(kNow + 1) % 2][i.value]); });
        }
        float scale[S::kBatch][2] = {};
        if constexpr (!S::kWhole) {
#pragma unroll
          for (int i = 0; i < 2 * S::kBatch; i++) {
            const int n = (alive ? warp_n + 16 * kFirst : first_n) + 8 * i + g;
            scale[i / 2][i % 2] = scale_of<S, L>(stage, w, n, first_n, k0);
          }
        }
        wait_for_products();
        unrolled<0, S::kBatch>([&](auto i) { pin(part[kPart + i.value]); });
        // Scale what was summed
        if constexpr (!S::kWhole) {
#pragma unroll
          for (int i = 0; i < S::kBatch; i++) {
#pragma unroll
            for (int e = 0; e < kSums; e++) {
              float factor = scale[i][e % 4 / 2];
              if constexpr (C::act_scale == ActScale::group) {
                const int r = row_of<C>(lists, here, here.first + e / 4 * 8 + 2 * t + e % 2);
                const int act_group = k0 / C::act_group < kActGroups ? k0 / C::act_group : kActGroups - 1;  // beyond K there is no activation
                factor *= r >= 0 ? x_scale[i64(r) * kActGroups + act_group] : 0.0f;
              }
              total[kFirst + i][e] = fmaf(float(part[i][e]) * kUnit, factor, total[kFirst + i][e]);
            }
          }
        }
      });
    }
  }

  // Row scales, secondary scales, bias
  unrolled<0, 4>([&](auto tile_of_rows) {
    constexpr int i = decltype(tile_of_rows)::value;
#pragma unroll
    for (int e = 0; e < kSums; e++) {
      const int n = warp_n + 16 * i + g + e % 4 / 2 * 8, r = row_of<C>(lists, here, here.first + e / 4 * 8 + 2 * t + e % 2);
      if (n >= L::n || r < 0) continue;
      float sum = total[i][e];
      if constexpr (S::kWhole) sum = float(part[i][e]) * kUnit * weight_scale<L>(w.weight_scale, n, 0);
      if constexpr (C::act_scale == ActScale::token) sum *= x_scale[r];
      const float value = fmaf(sum, secondary_scale<L>(w.weight_scale_2, n), bias_of<L>(w.bias, n));
      store<C::output>(y, i64(r) * L::n + n, value);
    }
  });
}

}  // namespace hc
