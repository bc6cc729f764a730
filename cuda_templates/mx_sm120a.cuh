// The block-scaled kernel family of sm_120a: scales of weights and activations go into the multiplication, float32 sums are of scaled numbers.
// Compiled and looked at, never run: no family is chosen by itself before it has been.
//
// A block makes 64 rows of W for each warp x kTileM rows of x. Weights are operand A, from registers, read as they lie (fragments.cuh); rows of x
// are operand B, in shared memory by cp.async. What has no scale for each group gets 1 here, and its scale at the end.
// Host side: gemm/mx_sm120a.py.
#pragma once

#include "copies_sm80.cuh"
#include "experts.cuh"
#include "mma_sm120a.cuh"
#include "operands.cuh"
#include "scales.cuh"
#include "tasks.cuh"

namespace hc {

template <class L, class C, class T>
struct MxShape {
  static constexpr int kThreads = T::threads, kBlocks = kThreads / 32, kTileM = T::tile_m, kTileN = 64 * kBlocks, kTileK = T::tile_k;
  static constexpr int kStep = 256 / L::act_bits, kSteps = kTileK / kStep, kRowBytes = kTileK * L::act_bits / 8, kPitch = kRowBytes + 16;
  static constexpr int kGroup = L::act_bits == 4 && L::group_k == 16 ? 16 : 32;  // columns that share a scale inside the instruction
  static constexpr int kScales = kStep / kGroup;
  static constexpr bool kWeightScales = L::group_k == kGroup;
  static constexpr u32 kOne = kGroup == 16 ? 0x38383838u : 0x7F7F7F7Fu;  // 1 in E4M3 and in E8M0
  static_assert(kTileK % kStep == 0 && kTileM % 8 == 0, "whole instructions");
};

// Scales of row n for a step that begins at column k.
template <class S, class L>
HC_FN u32 weight_scales(const void* scales, int n, int k) {
  if constexpr (!S::kWeightScales) return S::kOne;
  u32 out = 0;
#pragma unroll
  for (int v = 0; v < S::kScales; v++) {
    out |= u32(static_cast<const u8*>(scales)[scale_index<L>(n, k / S::kGroup + v)]) << (8 * v);
  }
  return out;
}

// Scales of a row of x: quantize_any made them as float32, of the type that the instruction wants.
template <class S, class L, class C>
HC_FN u32 activation_scales(const float* x_scale, int r, int k) {
  if constexpr (C::act_scale != ActScale::group) return S::kOne;
  constexpr int kGroups = ceil_to(L::k, S::kGroup) / S::kGroup;
  u32 out = 0;
#pragma unroll
  for (int v = 0; v < S::kScales; v++) {
    const int group = k / S::kGroup + v;
    const float scale = r >= 0 && group < kGroups ? x_scale[i64(r) * kGroups + group] : 1.0f;
    const u32 byte = S::kGroup == 16 ? to_byte<Operand::e4m3>(scale) : as_bits(scale) >> 23 & 255;
    out |= byte << (8 * v);
  }
  return out;
}

// Register r of row tile i as the instruction wants its type.
template <class L, int i, int r>
HC_FN u32 mx_operand(const LaneWords<L>& from, int lane) {
  const u32 codes = from.template codes<i, r>(lane);
  return L::act_bits == 8 && L::bits == 4 ? codes << 2 : codes;
}

template <class L, class C, class T>
__device__ void mx_sm120a(const void* x, const Tensors& all, const float* x_scale, const TaskLists& lists, void* y, int m) {
  using S = MxShape<L, C, T>;
  using Line = Lines<L>;
  constexpr int kRowBytes = L::k * L::act_bits / 8, kTilesM = S::kTileM / 8;
  __shared__ __align__(16) u8 tile_x[S::kTileM * S::kPitch];

  // This block, this warp, this lane
  const RowTile here = tile_of<L, C, S::kTileM>(lists, blockIdx.y, m);
  if (here.expert < 0) return;
  const Tensors w = of_expert<L>(all, here.expert);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int warp_n = (blockIdx.x * S::kBlocks + warp) * 64;
  const bool alive = warp_n < L::shape_n;  // warps beyond N read block 0, and store nothing
  const u32* block = w.weight + (alive ? warp_n / 64 : 0) * i64(Line::kBlockWords);

  float sums[4][kTilesM][4] = {};
  for (int k0 = 0; k0 < L::shape_k; k0 += S::kTileK) {
    // Rows of x; what lies beyond K is 0
    constexpr int kChunks = S::kRowBytes / 16;
    for (int i = threadIdx.x; i < S::kTileM * kChunks; i += S::kThreads) {
      const int r = x_row<C>(lists, row_of<C>(lists, here, here.first + i / kChunks)), column = k0 * L::act_bits / 8 + i % kChunks * 16;
      const bool there = r >= 0 && column < kRowBytes;
      copy_16(shared_address(tile_x + i / kChunks * S::kPitch + i % kChunks * 16),
              static_cast<const u8*>(x) + (there ? i64(r) * kRowBytes + column : 0), there);
    }
    close_copies();
    wait_for_copies<0>();
    __syncthreads();

    for (int s = 0; s < S::kSteps; s++) {
      const int k = k0 + s * S::kStep;
      if (k >= L::shape_k) break;
      LaneWords<L> held;
      held.load(block, int(Line::kPitch), k / S::kStep, lane);
      u32 b[kTilesM][2], scale_b[kTilesM];
#pragma unroll
      for (int j = 0; j < kTilesM; j++) {
        const u32* from = reinterpret_cast<const u32*>(tile_x + (8 * j + g) * S::kPitch + s * 32);
        b[j][0] = from[t], b[j][1] = from[t + 4];
        scale_b[j] = activation_scales<S, L, C>(x_scale, x_row<C>(lists, row_of<C>(lists, here, here.first + 8 * j + g)), k);
      }
      unrolled<0, 4>([&](auto tile_of_rows) {
        constexpr int i = decltype(tile_of_rows)::value;
        u32 a[4];
        unrolled<0, 4>([&](auto r) { a[r.value] = mx_operand<L, i, r.value>(held, lane); });
        const u32 scale_a = weight_scales<S, L>(w.weight_scale, (alive ? warp_n : 0) + 16 * i + g + t % 2 * 8, k);
#pragma unroll
        for (int j = 0; j < kTilesM; j++) {
          if constexpr (L::act_bits == 8) {
            mma_mx8<L::exponent, L::mantissa>(sums[i][j], a, b[j], scale_a, scale_b[j]);
          } else {
            mma_mx4<S::kGroup>(sums[i][j], a, b[j], scale_a, scale_b[j]);
          }
        }
      });
    }
    __syncthreads();
  }

  // Scales that are no part of the sums, bias
#pragma unroll
  for (int i = 0; i < 4; i++) {
#pragma unroll
    for (int e = 0; e < 4 * kTilesM; e++) {
      const int n = warp_n + 16 * i + g + e % 4 / 2 * 8, r = row_of<C>(lists, here, here.first + e / 4 * 8 + 2 * t + e % 2);
      if (n >= L::n || r < 0) continue;
      float sum = sums[i][e / 4][e % 4];
      if constexpr (!S::kWeightScales) sum *= weight_scale<L>(w.weight_scale, n, 0);
      if constexpr (C::act_scale == ActScale::token) sum *= x_scale[x_row<C>(lists, r)];
      const float value = fmaf(sum, secondary_scale<L>(w.weight_scale_2, n), bias_of<L>(w.bias, n));
      store<C::output>(y, i64(r) * L::n + n, value);
    }
  }
}

}  // namespace hc
