// The Hopper kernel family: wgmma on weights in standard, packed K and flat order, beside 16-bit, E4M3 and 8-bit integer activations.
//
// A block makes 64 rows of W for each warp of a warpgroup x kTileM rows of x. Weights are operand A, from registers: a warp reads the words of 64 rows
// as they lie on disk and turns them into operands a register at a time (fragments.cuh, operands.cuh). Rows of x are operand B, in shared memory.
// Both come by cp.async, kStages tiles of K ahead.
// T::share warpgroups have the same rows, of which each takes some of the four row tiles: more rows of x then find room in the registers of one, and
// each operand is made for more of them.
// As in mma_any, operands are exact and scales stay outside: sums over at most a group are float32 (int32 beside integers) and are scaled as they are
// added up.  What it takes, and why not: gemm/wgmma_sm90a.py.
#pragma once

#include "barriers_sm90a.cuh"
#include "parts_sm80.cuh"
#include "stages_sm80.cuh"
#include "warpgroup_sm90a.cuh"

namespace hc {

template <class L, class C, class T>
struct WgmmaShape : StageShape<L, T::threads, T::threads / 32 / T::share, T::tile_m, T::tile_k> {
  using Stage = StageShape<L, T::threads, T::threads / 32 / T::share, T::tile_m, T::tile_k>;
  using Stage::kTileM, Stage::kTileK;
  // K: a segment is multiplied by one scale of each row; a step is one instruction
  static constexpr int kStep = 256 / L::act_bits;
  static constexpr int kSegment = C::flush < 4 * kStep ? C::flush : 4 * kStep, kSegments = kTileK / kSegment, kSteps = kSegment / kStep;
  // segments that are added up before they are scaled
  static constexpr int kTogether = (C::flush < kTileK ? C::flush : kTileK) / kSegment;
  // row tiles of a warpgroup; those that are multiplied at once, as many as registers allow, since one alone waits for itself
  static constexpr int kRowTiles = 4 / T::share, kAtMost = kTileM <= 16 ? 4 : kTileM <= 32 ? 2 : 1;
  static constexpr int kBatch = kRowTiles < kAtMost ? kRowTiles : kAtMost, kBatches = kRowTiles / kBatch;
  static constexpr int kPart = ceil_to(Stage::kTiles, T::parts) / T::parts;  // parts of K, in tiles
  // E4M3 sums are short of bits and are added up in float32 on the way
  static constexpr bool kWhole = one_scale<L, C>() && C::operand != Operand::e4m3;

  // row tiles of a warpgroup have words of their own: its code then need not say which they are
  static constexpr bool kHalves = T::share == 1 || LaneWords<L>::kHalves;

  static_assert(T::threads % (128 * T::share) == 0 && (T::share == 1 || T::share == 2), "whole warpgroups, of all row tiles or half of them");
  static_assert(kSegment % kStep == 0 && kTileK % kSegment == 0, "whole segments");
  static_assert(C::flush >= L::shape_k || C::flush % kSegment == 0, "segments lie inside groups of scales");
  static_assert((T::parts - 1) * kPart < Stage::kTiles, "no part is empty");
  // sums in shared memory: lanes of a warp, t * 2 rows of x and g rows of W apart, are in different banks
  static constexpr int kBeside = 4, kPitch = Stage::kTileN + kBeside, kStages = T::stages * Stage::kStageBytes, kTable = kTileM * kPitch * 4;
  static_assert(T::shared == (kStages > kTable ? kStages : kTable) + 1024, "gemm/wgmma_sm90a.py counts the same bytes");
};

template <class L, class C, class T>
__device__ void wgmma_sm90a(const void* x, const Tensors& all, const float* x_scale, const TaskLists& lists, const PartSums& sums_of_parts, void* y,
                            int m) {
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
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, share = warp / 4 % T::share;
  const int block = warp / (4 * T::share) * 4 + warp % 4, first_n = blockIdx.x / T::parts * S::kTileN, warp_n = first_n + 64 * block;
  const bool alive = warp_n < L::shape_n;  // blocks beyond N are multiplied with the others, and thrown away
  const int begin = blockIdx.x % T::parts * S::kPart, end = begin + S::kPart < S::kTiles ? begin + S::kPart : S::kTiles;
  int rows[S::kRounds];
  rows_of_thread<S, C>(rows, lists, here);
  // Stages are full when all threads' copies have arrived, free when all warps have. Copies go kAhead tiles ahead: that far warpgroups may drift apart.
  constexpr int kAhead = T::stages > 2 ? T::stages - 2 : 1;
  __shared__ u64 full[T::stages], free_again[T::stages];
  if (threadIdx.x == 0) {
    for (int i = 0; i < T::stages; i++) start_barrier(full + i, T::threads), start_barrier(free_again + i, T::threads / 32);
  }
  __syncthreads();
  StageCopies<S, L> copies(x, rows, w, first_n, begin);
  StageTurn<T::stages> into, now;
  const auto copy = [&](int tile) {
    if (tile >= end) return;
    if (tile - begin >= T::stages) wait_for_phase(free_again + into.stage, into.parity ^ 1);
    copies.next(shared_address(stages + into.stage * S::kStageBytes));
    arrive_with_copies(full + into.stage);
    into = into.next();
  };

  using Sum = typename Choose<kIntegers, int, float>::type;
  float total[S::kRowTiles][kSums] = {};
  Sum part[S::kWhole ? S::kRowTiles : S::kBatch][kSums] = {};
  // Multiplies this warpgroup's row tiles by the tile of K in `stage`: kFirst and so on, of those that are loaded. A segment's operands are made while
  // the one before is multiplied.
  const int from = share * S::kRowTiles;  // row tile
  const auto multiply = [&](auto first_row_tile, const u8* stage, int tile) {
    constexpr int kFirst = decltype(first_row_tile)::value, kLoaded = S::kHalves ? S::kRowTiles : 4, kItems = S::kBatches * S::kSegments;
    const u32* lines = reinterpret_cast<const u32*>(stage + S::kWordsAt) + block * Line::kBlockWords;
    const int n0 = alive ? warp_n : first_n;
    u32 a[2][S::kBatch][S::kSteps][4];
    const auto make_operands = [&](auto item) {
      constexpr int kItem = decltype(item)::value, kSegment = kItem % S::kSegments, kFrom = kFirst + kItem / S::kSegments * S::kBatch;
      u32 beside[S::kRowTiles][2];
      zeros_of_lane<S, L>(beside, stage, w, n0, first_n, g, {tile * S::kTileK + kSegment * S::kSegment, kSegment * S::kSegment}, from);
#pragma unroll
      for (int step = 0; step < S::kSteps; step++) {
        LaneWords<L> held;
        held.template load<kLoaded>(lines, S::kLineWords, kSegment * S::kSteps + step, lane, kLoaded < 4 ? share : 0);
        unrolled<0, S::kBatch>([&](auto of_batch) {
          constexpr int j = decltype(of_batch)::value, i = kFrom + j;
          unrolled<0, 4>([&](auto r) { a[kItem % 2][j][step][r.value] = operand<L, C::operand, i, r.value>(held, lane, beside[i - kFirst][r.value % 2]); });
        });
      }
    };

    make_operands(Constant<0>());
    unrolled<0, kItems>([&](auto item) {
      constexpr int kItem = decltype(item)::value, kBatch = kItem / S::kSegments, kSegment = kItem % S::kSegments;
      constexpr int kInto = S::kWhole ? kBatch * S::kBatch : 0;
      constexpr bool kBegins = kSegment % S::kTogether == 0, kEnds = (kSegment + 1) % S::kTogether == 0;
      // Multiply
      unrolled<0, S::kBatch>([&](auto j) { pin(part[kInto + j.value]); });
      ready();
#pragma unroll
      for (int step = 0; step < S::kSteps; step++) {
        constexpr int kPanelSteps = 128 / 32;
        const int at = kSegment * S::kSteps + step;
        const u64 b = describe_rows(shared_address(stage + at / kPanelSteps * S::kPanelBytes) + at % kPanelSteps * 32);
        unrolled<0, S::kBatch>([&](auto j) {
          wgmma<C::operand, S::kTileM>(part[kInto + j.value], a[kItem % 2][j.value][step], b, S::kWhole || !kBegins || step > 0);
        });
      }
      close_products();
      // Meanwhile the next operands, in the place of those of the item before
      if constexpr (kItem + 1 < kItems) {
        wait_for_products<1>();
        make_operands(Constant<kItem + 1>());
        unrolled<0, S::kBatch>([&](auto j) { pin(a[(kItem + 1) % 2][j.value]); });
      }
      if constexpr (!S::kWhole && kEnds) {
        constexpr int kBegan = (kSegment + 1 - S::kTogether) * S::kSegment;
        const int k0 = tile * S::kTileK + kBegan;
        float scale[S::kRowTiles][2];
        scales_of_lane<S, L>(scale, stage, w, n0, first_n, g, {k0, kBegan}, from);
        wait_for_products<0>();
        unrolled<0, S::kBatch>([&](auto j) { pin(part[kInto + j.value]); });
        // Scale what was summed
#pragma unroll
        for (int j = 0; j < S::kBatch; j++) {
#pragma unroll
          for (int e = 0; e < kSums; e++) {
            float factor = scale[kBatch * S::kBatch + j][e % 4 / 2];
            if constexpr (C::act_scale == ActScale::group) {
              const int r = x_row<C>(lists, row_of<C>(lists, here, here.first + e / 4 * 8 + 2 * t + e % 2));
              const int act_group = k0 / C::act_group < kActGroups ? k0 / C::act_group : kActGroups - 1;  // beyond K there is no activation
              factor *= r >= 0 ? x_scale[i64(r) * kActGroups + act_group] : 0.0f;
            }
            float& sum = total[kBatch * S::kBatch + j][e];
            sum = fmaf(float(part[j][e]), factor, sum);
          }
        }
      }
    });
    if constexpr (S::kWhole) {
      wait_for_products<0>();
      unrolled<0, S::kRowTiles>([&](auto j) { pin(part[j.value]); });
    }
  };

  for (int tile = begin - kAhead; tile < end; tile++) {
    copy(tile + kAhead);
    if (tile < begin) continue;
    wait_for_phase(full + now.stage, now.parity);
    publish_to_tensor_cores();
    const u8* stage = stages + now.stage * S::kStageBytes;
    if constexpr (S::kHalves) {
      multiply(Constant<0>(), stage, tile);
    } else {
      unrolled<0, T::share>([&](auto of_rows) {
        if (share == of_rows.value) multiply(Constant<of_rows.value * S::kRowTiles>(), stage, tile);
      });
    }
    __syncwarp();
    if (lane == 0) arrive_now(free_again + now.stage);
    now = now.next();
  }

  // All warps are through with the stages. Sums that are not whole yet: of all parts
  __syncthreads();
  auto& sums = pick<S::kWhole>(part, total);
  if constexpr (T::parts > 1) {
    if (!added_up<T::parts, T::threads>(sums, sums_of_parts, reinterpret_cast<int*>(shared))) return;
  }

  // By way of shared memory, so that neighbouring threads store neighbouring rows of W: [row of x][row of W, and kBeside words]
  using Total = typename Choose<S::kWhole, Sum, float>::type;
  Total* const table = reinterpret_cast<Total*>(stages);
  unrolled<0, S::kRowTiles>([&](auto i) {
#pragma unroll
    for (int e = 0; e < kSums; e++) {
      table[(e / 4 * 8 + 2 * t + e % 2) * S::kPitch + 64 * block + 16 * (from + i.value) + g + e % 4 / 2 * 8] = sums[i.value][e];
    }
  });
  __syncthreads();
  // Row scales, secondary scales, bias
  constexpr int kAcross = T::threads < S::kTileN ? T::threads : S::kTileN, kDown = T::threads / kAcross;
  for (int column = threadIdx.x % kAcross; column < S::kTileN && first_n + column < L::n; column += kAcross) {
    const int n = first_n + column;
    const float factor = S::kWhole ? weight_scale<L>(w.weight_scale, n, 0) : 1.0f;
    const float second = secondary_scale<L>(w.weight_scale_2, n), bias = bias_of<L>(w.bias, n);
#pragma unroll 4
    for (int j = threadIdx.x / kAcross; j < S::kTileM; j += kDown) {
      const int r = row_of<C>(lists, here, here.first + j);
      if (r < 0) continue;
      float value = kUnit * float(table[j * S::kPitch + column]) * factor;
      if constexpr (C::act_scale == ActScale::token) value *= x_scale[x_row<C>(lists, r)];
      store<C::output>(y, i64(r) * L::n + n, fmaf(value, second, bias));
    }
  }
}

}  // namespace hc
