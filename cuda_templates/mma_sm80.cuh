// The mma.sync kernel family of sm_80 and newer: weights in standard, packed K and flat order, beside 16-bit, E4M3 and integer activations.
//
// A warp multiplies a block of 64 rows of W by kTileM rows of x. Weights are operand A, from registers: a warp reads the words of its rows as they
// lie on disk and turns them into operands a register at a time (fragments.cuh, operands.cuh). Rows of x are operand B, from shared memory by
// ldmatrix. Both come by cp.async, T::stages tiles of K ahead (stages_sm80.cuh).
// For few rows of x the warps of a block share 64 rows of W: each takes segments of K of its own, and their sums are added up at the end. And K is
// divided into parts, for a block each (parts_sm80.cuh), so that there are blocks for the whole GPU.
// As in mma_any, operands are exact and scales stay outside: sums over at most a group are float32 (int32 beside integers) and are scaled as they are
// added up. Floating zero points are taken from the sums.  What it takes, and why not: gemm/mma_sm80.py.
#pragma once

#include "halves.cuh"
#include "parts_sm80.cuh"
#include "stages_sm80.cuh"
#include "warp_sm80.cuh"

namespace hc {

template <class L, class C, class T>
struct MmaShape : StageShape<L, T::threads, T::threads / 32 / T::warps_k, T::tile_m, T::tile_k> {
  using Stage = StageShape<L, T::threads, T::threads / 32 / T::warps_k, T::tile_m, T::tile_k>;
  static constexpr int kWarpsK = T::warps_k, kWarpsN = T::threads / 32 / kWarpsK, kTilesM = T::tile_m / 8;
  // K: a segment is multiplied by one scale of each row; a step is one instruction
  static constexpr int kStep = 256 / L::act_bits, kMost = T::steps * kStep;
  static constexpr int kSegment = C::flush < kMost ? C::flush : kMost, kSegments = T::tile_k / kSegment, kSteps = kSegment / kStep;
  // E4M3 sums may be short of bits and are added up in float32 on the way; floating zero points are taken there
  static constexpr bool kWhole = one_scale<L, C>() && C::operand != Operand::e4m3 && L::zero != Zero::floating;
  // parts of K, in tiles
  static constexpr int kPart = ceil_to(Stage::kTiles, T::parts) / T::parts;
  // sums: of a lane of a warp, and of those the ones that a thread finishes
  static constexpr int kSums = 16 * kTilesM, kOwn = kSums / kWarpsK;
  // shared memory: stages, and then the sums of all warps
  static constexpr int kStages = T::stages * Stage::kStageBytes, kSumBytes = kWarpsK == 1 ? 0 : T::threads * kSums * 4;

  static_assert(kSegment % kStep == 0 && T::tile_k % kSegment == 0, "whole segments");
  static_assert(C::flush >= L::shape_k || C::flush % kSegment == 0, "segments lie inside groups of scales");
  static_assert(L::zero != Zero::floating || operand_unit<L, C::operand>() == 1, "floating zero points beside codes as they are");
  static_assert(T::tile_m % 8 == 0 && kSums % kWarpsK == 0, "as many sums for each warp");
  static_assert((T::parts - 1) * kPart < Stage::kTiles, "no part is empty");
  static_assert(T::shared == (kSumBytes > kStages ? kSumBytes : kStages), "gemm/mma_sm80.py counts the same bytes");
};

// Operand B of a segment: row tile j of x, from `column` bytes of the tile on.
template <class S>
HC_FN void load_segment(u32 (&b)[S::kSteps][2], u32 stage, int j, int column, int lane) {
  constexpr int kAtOnce = S::kSteps % 2 == 0 ? 2 : 1;
#pragma unroll
  for (int step = 0; step < S::kSteps; step += kAtOnce) {
    u32 some[kAtOnce][2];
    load_blocks(some, chunk_at<S>(stage, 8 * j + lane % 8, column / 16 + 2 * step + lane / 8 % (2 * kAtOnce)));
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) b[step + i][0] = some[i][0], b[step + i][1] = some[i][1];
  }
}

// Ones in each place of a register: their products are sums of activations.
template <Operand kOperand>
HC_FN constexpr u32 ones() {
  static_assert(kOperand != Operand::e4m3, "sums of E4M3 are too short for it");
  return kOperand == Operand::f16    ? 0x3C003C00u
         : kOperand == Operand::bf16 ? 0x3F803F80u
         : kOperand == Operand::s8   ? 0x01010101u
                                     : 0x11111111u;
}

template <class L, class C, class T>
__device__ void mma_sm80(const void* x, const Tensors& all, const float* x_scale, const TaskLists& lists, const PartSums& sums_of_parts, void* y,
                         int m) {
  using S = MmaShape<L, C, T>;
  using Line = Lines<L>;
  constexpr bool kIntegers = C::operand == Operand::s8 || C::operand == Operand::s4, kFloatingZero = L::zero == Zero::floating;
  constexpr int kActGroups = C::act_group ? ceil_to(L::k, C::act_group ? C::act_group : 1) / (C::act_group ? C::act_group : 1) : 1;
  constexpr float kUnit = operand_unit<L, C::operand>();
  extern __shared__ __align__(128) u8 shared[];

  // This block, this warp, this lane
  const RowTile here = tile_of<L, C, S::kTileM>(lists, blockIdx.y, m);
  if (here.expert < 0) return;
  const Tensors w = of_expert<L>(all, here.expert);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int warp_k = warp / S::kWarpsN, first_n = blockIdx.x / T::parts * S::kTileN;
  const int warp_n = first_n + warp % S::kWarpsN * 64;
  const bool alive = warp_n < L::shape_n;  // warps beyond N multiply with the others, and store nothing
  const int begin = blockIdx.x % T::parts * S::kPart, end = begin + S::kPart < S::kTiles ? begin + S::kPart : S::kTiles;
  int rows[S::kRounds];
  rows_of_thread<S, C>(rows, lists, here);
  StageCopies<S, L> copies(x, rows, w, first_n, begin);
  StageTurn<T::stages> into, from;
  const u32 stages = shared_address(shared);
  const auto copy = [&](int tile) {
    if (tile < end) copies.next(stages + into.stage * S::kStageBytes);
    into = into.next();
    close_copies();
  };

  using Sum = typename Choose<kIntegers, int, float>::type;
  using Total = typename Choose<S::kWhole, Sum, float>::type;
  Total total[4][S::kTilesM][4] = {};
  for (int tile = begin - (T::stages - 1); tile < end; tile++) {
    if (tile >= begin) {
      // Wait for this stage; the one before is free now
      wait_for_copies<T::stages - 2>();
      __syncthreads();
    }
    copy(tile + T::stages - 1);
    if (tile < begin) continue;
    const u8* stage = shared + from.stage * S::kStageBytes;
    from = from.next();
    const u32* lines = reinterpret_cast<const u32*>(stage + S::kWordsAt) + warp % S::kWarpsN * Line::kBlockWords;

#pragma unroll
    for (int round = 0; round < S::kSegments; round += S::kWarpsK) {
      const int s = round + warp_k;
      const Columns k = {tile * S::kTileK + s * S::kSegment, u32(s * S::kSegment)};
      if ((S::kSegments % S::kWarpsK && s >= S::kSegments) || (!S::kWholeK && k.first >= L::shape_k)) break;
      // Operands of the segment, for four tiles of rows of W
      LaneWords<L> held[S::kSteps];
#pragma unroll
      for (int step = 0; step < S::kSteps; step++) held[step].load(lines, S::kLineWords, s * S::kSteps + step, lane);
      u32 a[4][S::kSteps][4];
      const int n0 = alive ? warp_n : first_n;
      u32 beside[4][2];
      float scale[4][2] = {}, zero[4][2] = {};
      zeros_of_lane<S, L>(beside, stage, w, n0, first_n, g, k);
      if constexpr (!S::kWhole) scales_of_lane<S, L>(scale, stage, w, n0, first_n, g, k);
      unrolled<0, 4>([&](auto tile_of_rows) {
        constexpr int i = decltype(tile_of_rows)::value;
#pragma unroll
        for (int step = 0; step < S::kSteps; step++) {
          unrolled<0, 4>([&](auto r) { a[i][step][r.value] = operand<L, C::operand, i, r.value>(held[step], lane, beside[i][r.value % 2]); });
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
          if constexpr (kFloatingZero) zero[i][h] = floating_zero_of<S, L>(stage, w, n0 + 16 * i + 8 * h + g, first_n, k);
        }
      });

#pragma unroll
      for (int j = 0; j < S::kTilesM; j++) {
        u32 b[S::kSteps][2];
        load_segment<S>(b, shared_address(stage), j, s * S::kSegment * L::act_bits / 8, lane);
        if constexpr (S::kWhole) {
#pragma unroll
          for (int step = 0; step < S::kSteps; step++) {
#pragma unroll
            for (int i = 0; i < 4; i++) multiply<C::operand>(total[i][j], a[i][step], b[step]);
          }
        } else {
          Sum part[4][4] = {}, row_sum[4] = {};
#pragma unroll
          for (int step = 0; step < S::kSteps; step++) {
#pragma unroll
            for (int i = 0; i < 4; i++) multiply<C::operand>(part[i], a[i][step], b[step]);
            if constexpr (kFloatingZero) {
              constexpr u32 kOnes = ones<C::operand>(), all_ones[4] = {kOnes, kOnes, kOnes, kOnes};
              multiply<C::operand>(row_sum, all_ones, b[step]);
            }
          }
          // Scale what was summed
          float act[2] = {1, 1};
          if constexpr (C::act_scale == ActScale::group) {
            const int group = k.first / C::act_group < kActGroups ? k.first / C::act_group : kActGroups - 1;  // beyond K there is no activation
#pragma unroll
            for (int h = 0; h < 2; h++) {
              const int r = x_row<C>(lists, row_of<C>(lists, here, here.first + 8 * j + 2 * t + h));
              act[h] = r >= 0 ? x_scale[i64(r) * kActGroups + group] : 0.0f;
            }
          }
#pragma unroll
          for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
              float sum = float(part[i][e]);
              if constexpr (kFloatingZero) sum -= zero[i][e / 2] * float(row_sum[e % 2]);
              total[i][j][e] = fmaf(sum, scale[i][e / 2] * act[e % 2], total[i][j][e]);
            }
          }
        }
      }
    }
  }

  // What this thread finishes: of its lane's sums those from `first` on, [row tile][row tile of x][4]
  Total own[1][S::kOwn];
  const int first = warp_k * S::kOwn;
  if constexpr (S::kWarpsK == 1) {
#pragma unroll
    for (int v = 0; v < S::kOwn; v++) own[0][v] = total[v / (4 * S::kTilesM)][v / 4 % S::kTilesM][v % 4];
  } else {
    // Sums of all warps over their parts of K: [warp][sum][lane]
    Total* const sums = reinterpret_cast<Total*>(shared) + lane;
    wait_for_copies<0>();
    __syncthreads();
#pragma unroll
    for (int v = 0; v < S::kSums; v++) sums[(warp * S::kSums + v) * 32] = total[v / (4 * S::kTilesM)][v / 4 % S::kTilesM][v % 4];
    __syncthreads();
#pragma unroll
    for (int v = 0; v < S::kOwn; v++) {
      own[0][v] = 0;
#pragma unroll
      for (int k = 0; k < S::kWarpsK; k++) own[0][v] += sums[((k * S::kWarpsN + warp % S::kWarpsN) * S::kSums + first + v) * 32];
    }
  }
  if constexpr (T::parts > 1) {
    if (!added_up<T::parts, T::threads>(own, sums_of_parts, reinterpret_cast<int*>(shared))) return;
  }

  // Row scales, secondary scales, bias
#pragma unroll
  for (int v = 0; v < S::kOwn; v++) {
    const int i = (first + v) / (4 * S::kTilesM), j = (first + v) / 4 % S::kTilesM, e = (first + v) % 4;
    const int n = warp_n + 16 * i + g + e / 2 * 8, r = row_of<C>(lists, here, here.first + j * 8 + 2 * t + e % 2);
    if (n >= L::n || r < 0) continue;
    float value = kUnit * float(own[0][v]);
    if constexpr (S::kWhole) value *= weight_scale<L>(w.weight_scale, n, 0);
    if constexpr (C::act_scale == ActScale::token) value *= x_scale[x_row<C>(lists, r)];
    store<C::output>(y, i64(r) * L::n + n, fmaf(value, secondary_scale<L>(w.weight_scale_2, n), bias_of<L>(w.bias, n)));
  }
}

}  // namespace hc
