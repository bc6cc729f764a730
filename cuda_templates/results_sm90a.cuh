// From sums to y, for cluster_sm90a.cuh. What belongs to rows and columns is brought beside the stages while others multiply; numbers then go by way of
// shared memory, where neighbouring rows of W become neighbours, so that a thread stores 16 bytes of a row of y at once.
//
//   beside the stages   rows of x, rows of y: [kTileM], int; scales of rows of x: [kTileM]; factors, secondary scales, biases of rows of W: [kTileN], float32:
//                       those of them that the layer and its task have, one after the other
//   table               [row of x][row of W, and 16 bytes], in the type of y, in the place of the stages, or behind them where these go on
//
// Host side, the same bytes: gemm/cluster_sm90a.py.
#pragma once

#include "experts.cuh"
#include "halves.cuh"
#include "operands.cuh"
#include "scales.cuh"
#include "tasks.cuh"
#include "warpgroup_sm90a.cuh"

namespace hc {

// kListed: rows of x lie anywhere.  kNamed: rows of x are asked for by their number.  kFactors: rows of W have a scale for all of K.
template <class L, class C, int kTileM, int kTileN, bool kListed, bool kNamed, bool kFactors>
struct Beside {
  static constexpr bool kRowScales = C::act_scale == ActScale::token, kSeconds = L::scale_2 != Scale2::none, kBiases = L::has_bias;
  static constexpr bool kBrought = kRowScales || kFactors || kSeconds || kBiases;
  static constexpr int kRowsOfYAt = kNamed ? kTileM : 0, kRowScalesAt = kRowsOfYAt + (kListed ? kTileM : 0);  // in words
  static constexpr int kFactorsAt = kRowScalesAt + (kRowScales ? kTileM : 0), kSecondsAt = kFactorsAt + (kFactors ? kTileN : 0);
  static constexpr int kBiasesAt = kSecondsAt + (kSeconds ? kTileN : 0), kBytes = 4 * (kBiasesAt + (kBiases ? kTileN : 0));

  u8* first;

  HC_FN int* rows_of_x() const { return reinterpret_cast<int*>(first); }
  HC_FN int* rows_of_y() const { return rows_of_x() + kRowsOfYAt; }
  HC_FN float* at(int word) const { return reinterpret_cast<float*>(first) + word; }

  // Slot by slot, before anything else.
  HC_FN void name_rows(const TaskLists& lists, const RowTile& here, int slot) const {
    if (!kNamed || slot >= kTileM) return;
    const int row = row_of<C>(lists, here, here.first + slot);
    rows_of_x()[slot] = x_row<C>(lists, row);
    if constexpr (kListed) rows_of_y()[slot] = row;
  }
  HC_FN int row_of_y(const RowTile& here, int slot) const {
    if constexpr (kListed) return rows_of_y()[slot];
    return here.first + slot < here.end ? here.first + slot : -1;
  }
  // By kThreads threads, whose number is `thread`. Rows that are not there have a scale of 0.
  template <int kThreads>
  HC_FN void bring(const Tensors& w, const float* x_scale, const RowTile& here, int first_n, int thread) const {
    if constexpr (kRowScales) {
      for (int r = thread; r < kTileM; r += kThreads) {
        const int row = kListed ? rows_of_x()[r] : row_of_y(here, r);
        at(kRowScalesAt)[r] = row >= 0 ? x_scale[row] : 0.0f;
      }
    }
    if constexpr (kFactors || kSeconds || kBiases) {
      for (int c = thread; c < kTileN && first_n + c < L::n; c += kThreads) {
        if constexpr (kFactors) at(kFactorsAt)[c] = weight_scale<L>(w.weight_scale, first_n + c, 0);
        if constexpr (kSeconds) at(kSecondsAt)[c] = secondary_scale<L>(w.weight_scale_2, first_n + c);
        if constexpr (kBiases) at(kBiasesAt)[c] = bias_of<L>(w.bias, first_n + c);
      }
    }
  }
};

template <int kBytes>
struct alignas(kBytes) Run {
  u8 x[kBytes];
};

// sums: of this lane over all of K, as wgmma leaves them, of the rows of the tile from `first_slot` on.  column: of the table, of row g of this warp.
// The first kThreads threads of the block.
template <class L, class C, int kTileN, int kThreads, class B, class Sum, int kSums>
HC_FN void store_results(const Sum (&sums)[kSums], u8* table, const B& beside, const RowTile& here, int first_slot, int first_n, int first_of_warp, void* y) {
  constexpr bool kFloats = C::output == Output::f32;
  constexpr int kItem = kFloats ? 4 : 2, kPitch = kTileN * kItem + 16, kRows = 2 * kSums;
  constexpr Half kHalf = C::output == Output::f16 ? Half::f16 : Half::bf16;
  constexpr float kUnit = operand_unit<L, C::operand>();
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float factor[2], second[2], bias[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int column = first_of_warp + g + 8 * h;
    factor[h] = kUnit * (B::kFactorsAt < B::kSecondsAt ? beside.at(B::kFactorsAt)[column] : 1.0f);
    second[h] = B::kSeconds ? beside.at(B::kSecondsAt)[column] : 1.0f, bias[h] = B::kBiases ? beside.at(B::kBiasesAt)[column] : 0.0f;
  }
  // Scales, secondary scales, bias; then to the table, blocks of 8 x 8 turned
  const u32 turned = shared_address(table + lane % 8 * kPitch + (first_of_warp + lane / 8 % 2 * 8) * kItem);
#pragma unroll
  for (int j = 0; j < kSums / 4; j++) {
    float value[2][2];  // [row of W][row of x]
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float of_row = B::kRowScales ? beside.at(B::kRowScalesAt)[first_slot + 8 * j + 2 * t + r] : 1.0f;
#pragma unroll
      for (int h = 0; h < 2; h++) value[h][r] = fmaf(float(sums[4 * j + 2 * h + r]) * factor[h] * of_row, second[h], bias[h]);
    }
    if constexpr (kFloats) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float* const to = reinterpret_cast<float*>(table + (8 * j + 2 * t + r) * kPitch) + first_of_warp + g;
        to[0] = value[0][r], to[8] = value[1][r];
      }
    } else {
      store_turned(turned + 8 * j * kPitch, two_halves<kHalf>(value[0][0], value[0][1]), two_halves<kHalf>(value[1][0], value[1][1]));
    }
  }
  sync_first<kThreads>();
  constexpr int kDivides = L::n & -L::n, kEach = kDivides < 16 / kItem ? kDivides : 16 / kItem, kOfRow = kTileN / kEach;
  static_assert(kThreads % kOfRow == 0, "whole rows at once");
  const int column = kEach * (threadIdx.x % kOfRow);
  if (first_n + column >= L::n) return;
  using Numbers = Run<kEach * kItem>;
#pragma unroll 4
  for (int j = threadIdx.x / kOfRow; j < kRows; j += kThreads / kOfRow) {
    const int row = beside.row_of_y(here, first_slot + j);
    if (row < 0) continue;
    *reinterpret_cast<Numbers*>(static_cast<u8*>(y) + (i64(row) * L::n + first_n + column) * kItem) =
        *reinterpret_cast<const Numbers*>(table + j * kPitch + column * kItem);
  }
}

}  // namespace hc
