// The plain kernel family: any layout, any type, mma.sync. A block makes kTileM rows x 64 columns of y = x * W^T, kTileK of K at a time:
// the codes of the tile are read one by one at their addresses and put into shared memory as 16-bit numbers (exact), the warps multiply.
// Scales are no part of the 16-bit numbers: sums over a group of K are float32 and are scaled as they are added up. So this kernel is the
// referee of the faster ones.  Host side: gemm/mma_any.py.
//
//   y[r, n] = (sum over groups: (sum x q) * scale[n, group] * x_scale[r, group]) * x_scale[r] * scale_2[n] + bias[n]
#pragma once

#include "codes.cuh"
#include "experts.cuh"
#include "halves.cuh"
#include "mma_sync.cuh"
#include "scales.cuh"
#include "tasks.cuh"

namespace hc {

template <class L, class C, class T>
__device__ void mma_any(const u16* x, const Tensors& all, const float* x_scale, const TaskLists& lists, void* y, int m) {
  // Shapes of the tile
  constexpr int kThreads = T::threads, kTileM = T::tile_m, kTileN = 64, kTileK = T::tile_k, kStep = C::step;
  constexpr int kWarpsM = kTileM / 16, kWarpsN = kThreads / 32 / kWarpsM, kWarpTiles = kTileN / kWarpsN / 8;
  constexpr int kPitch = kTileK + 8;  // rows 16 bytes apart in banks
  constexpr int kLoop = ceil_to(L::shape_k, kTileK);
  static_assert(kThreads == 32 * kWarpsM * kWarpsN && kWarpTiles >= 1, "the warps cover the tile");
  static_assert(kTileK % kStep == 0, "a tile holds whole steps");
  static_assert(C::flush % kStep == 0, "a step lies inside one group of scales");
  __shared__ __align__(16) u16 tile_x[kTileM * kPitch];
  __shared__ __align__(16) u16 tile_w[kTileN * kPitch];

  // This block, this thread
  const RowTile here = tile_of<L, C, kTileM>(lists, blockIdx.y, m);
  if (here.expert < 0) return;
  const Tensors w = of_expert<L>(all, here.expert);
  const int first_slot = here.first, first_n = blockIdx.x * kTileN;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int warp_m = warp % kWarpsM * 16, warp_n = warp / kWarpsM * (kTileN / kWarpsN);
  const int row[2] = {row_of<C>(lists, here, first_slot + warp_m + g), row_of<C>(lists, here, first_slot + warp_m + g + 8)};
  constexpr int kActGroups = C::act_group ? ceil_to(L::k, C::act_group ? C::act_group : 1) / (C::act_group ? C::act_group : 1) : 1;

  float total[kWarpTiles][4] = {}, part[kWarpTiles][4] = {}, row_sum[4] = {};
  for (int k0 = 0; k0 < kLoop; k0 += kTileK) {
    // Activations of this tile; columns of padding are 0
    for (int i = threadIdx.x; i < kTileM * kTileK; i += kThreads) {
      const int r = x_row<C>(lists, row_of<C>(lists, here, first_slot + i / kTileK)), k = k0 + i % kTileK;
      tile_x[i / kTileK * kPitch + i % kTileK] = r >= 0 && k < L::k ? x[i64(r) * L::k + k] : u16(0);
    }
    // Weights of this tile, as numbers
    for (int i = threadIdx.x; i < kTileN * kTileK; i += kThreads) {
      const int n = first_n + i / kTileK, k = k0 + i % kTileK;
      const bool inside = n < L::shape_n && k < L::shape_k;
      tile_w[i / kTileK * kPitch + i % kTileK] = inside ? to_half<L::half>(weight_number<L>(w.weight, w.zero_point, n, k)) : u16(0);
    }
    __syncthreads();

#pragma unroll
    for (int s = 0; s < kTileK; s += kStep) {
      // One step of every tile of the warp
      u32 a[kStep / 4], b[kStep / 8];
      load_a<kStep>(a, tile_x + warp_m * kPitch + s, kPitch, g, t);
#pragma unroll
      for (int j = 0; j < kWarpTiles; j++) {
        load_b<kStep>(b, tile_w + (warp_n + 8 * j) * kPitch + s, kPitch, g, t);
        mma<L::half, kStep>(part[j], a, b);
      }
      if constexpr (L::zero == Zero::floating) {
        // sums of the activations themselves: a column of ones
        constexpr u32 kOne = L::half == Half::f16 ? 0x3C00 : 0x3F80;
#pragma unroll
        for (int h = 0; h < kStep / 8; h++) b[h] = kOne << 16 | kOne;
        mma<L::half, kStep>(row_sum, a, b);
      }
      // The end of a group of scales
      const int end = k0 + s + kStep;
      if (end % C::flush != 0 && end != kLoop) continue;
      const int last = (end < L::shape_k ? end : L::shape_k) - 1, group = weight_group<L>(last);
      if (end - kStep >= L::shape_k) continue;  // the rest of the tile lies beyond K
#pragma unroll
      for (int j = 0; j < kWarpTiles; j++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
          const int n = first_n + warp_n + 8 * j + 2 * t + c % 2, r = row[c / 2];
          if (n < L::shape_n && r >= 0) {
            float sum = part[j][c];
            if constexpr (L::zero == Zero::floating) sum -= floating_zero<L>(w.zero_point, n, group) * row_sum[c / 2 * 2];
            float scale = weight_scale<L>(w.weight_scale, n, group);
            if constexpr (C::act_scale == ActScale::group) {
              // columns of padding have no scale, and no activation
              const int act_group = last / C::act_group < kActGroups ? last / C::act_group : kActGroups - 1;
              scale *= x_scale[i64(x_row<C>(lists, r)) * kActGroups + act_group];
            }
            total[j][c] = fmaf(sum, scale, total[j][c]);
          }
          part[j][c] = 0;
        }
      }
#pragma unroll
      for (int c = 0; c < 4; c++) row_sum[c] = 0;
    }
    __syncthreads();
  }

  // Row scales, secondary scales, bias
#pragma unroll
  for (int j = 0; j < kWarpTiles; j++) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const int n = first_n + warp_n + 8 * j + 2 * t + c % 2, r = row[c / 2];
      if (n >= L::n || r < 0) continue;
      float sum = total[j][c];
      if constexpr (C::act_scale == ActScale::token) sum *= x_scale[x_row<C>(lists, r)];
      const float value = fmaf(sum, secondary_scale<L>(w.weight_scale_2, n), bias_of<L>(w.bias, n));
      store<C::output>(y, i64(r) * L::n + n, value);
    }
  }
}

}  // namespace hc
