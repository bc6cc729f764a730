// The Blackwell kernel family: tcgen05 on standard words beside 16-bit activations. Compiled and looked at, never run: no family is chosen by
// itself before it has been.
//
// A block of four warps makes 128 rows of W x kTileM rows of x. Words are turned into 16-bit numbers by the warp that owns their rows and put into
// shared memory as operand A; rows of x are operand B. Sums over a segment of K lie in tensor memory, a row a thread, and are scaled as they are
// added up, as in mma_any.  One thing after the other, on purpose: making it overlap needs the GPU.  Host side: gemm/umma_sm100a.py.
#pragma once

#include "experts.cuh"
#include "operands.cuh"
#include "scales.cuh"
#include "tasks.cuh"
#include "tcgen05_sm100a.cuh"

namespace hc {

// Byte of column k (0..63) of a row in a swizzled panel of 128 bytes a row.
HC_FN int panel_byte(int row, int k) { return row * 128 + ((k / 8) ^ (row % 8)) * 16 + k % 8 * 2; }

template <class L, class C, class T>
__device__ void umma_sm100a(const void* x, const Tensors& all, const float* x_scale, const TaskLists& lists, void* y, int m) {
  // Shapes
  constexpr int kThreads = T::threads, kTileM = T::tile_m, kTileN = 128, kTileK = 64, kStep = 16;
  constexpr int kSegment = C::flush < kTileK ? C::flush : kTileK, kSegments = kTileK / kSegment, kSums = kTileM;
  constexpr int kPanelX = kTileM * 128, kPanelW = kTileN * 128, kRowBytes = 2 * L::k, kTensorColumns = kTileM < 32 ? 32 : kTileM;
  static_assert(kThreads == kTileN, "a row a thread");
  static_assert(T::tile_k == kTileK && L::act_bits == 16 && L::place == Place::standard, "panels of 64 columns");
  static_assert(kTileM % 16 == 0 && kSegment % kStep == 0 && kTileK % kSegment == 0 && C::flush % kSegment == 0, "whole instructions and groups");
  static_assert(T::shared == kPanelX + kPanelW + 1024, "gemm/umma_sm100a.py counts the same bytes");
  using Line = Lines<L>;
  extern __shared__ u8 shared[];
  __shared__ u32 tensor_memory;
  __shared__ u64 done;
  u8* const panel_w = shared + (1024 - shared_address(shared) % 1024) % 1024;
  u8* const panel_x = panel_w + kPanelW;

  // This block, this warp, this thread: row first_n + threadIdx.x of the sums; in words, rows of half a block of 64
  const RowTile here = tile_of<L, C, kTileM>(lists, blockIdx.y, m);
  if (here.expert < 0) return;
  const Tensors w = of_expert<L>(all, here.expert);
  const int first_n = blockIdx.x * kTileN, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int block = first_n / 64 + warp / 2, my_n = first_n + threadIdx.x;
  const bool there = block * 64 < L::shape_n;  // the second block may lie beyond N: then it is the first again, and thrown away
  const int read_block = there ? block : first_n / 64;
  const int scale_n = my_n < L::shape_n ? my_n : first_n;

  // Tensor memory and the barrier
  if (warp == 0) take_tensor_memory<kTensorColumns>(&tensor_memory);
  if (threadIdx.x == 0) make_barrier(&done);
  before_barrier();
  __syncthreads();
  after_barrier();
  const u32 sums = tensor_memory;
  constexpr u32 kProduct = describe_product<L::half, kTileM>();
  u32 phase = 0;

  float total[kSums] = {};
  for (int k0 = 0; k0 < L::shape_k; k0 += kTileK) {
    // Rows of x; what lies beyond K is 0
    for (int i = threadIdx.x; i < kTileM * 8; i += kThreads) {
      const int r = x_row<C>(lists, row_of<C>(lists, here, here.first + i / 8)), column = 2 * k0 + i % 8 * 16;
      const bool inside = r >= 0 && column < kRowBytes;
      copy_16(shared_address(panel_x + panel_byte(i / 8, i % 8 * 8)), static_cast<const u8*>(x) + (inside ? i64(r) * kRowBytes + column : 0), inside);
    }
    close_copies();
    // Weights: two row tiles of 16 a warp; lines beyond K are the last one again, beside zeros
#pragma unroll
    for (int step = 0; step < kTileK / kStep; step++) {
      const int k = k0 + step * kStep, wanted = k / kStep, line = wanted < Line::kCount ? wanted : Line::kCount - 1;
      LaneWords<L> held;
      held.load(w.weight + read_block * i64(Line::kBlockWords), int(Line::kPitch), line, lane);
      unrolled<0, 4>([&](auto tile_of_rows) {
        constexpr int i = decltype(tile_of_rows)::value;
        if (i / 2 != warp % 2) return;
        const int n = read_block * 64 + 16 * i + g, row = warp / 2 * 64 + 16 * i + g, known = k < L::shape_k ? k : L::shape_k - kStep;
        const u32 zero[2] = {operand_zero<L>(w.zero_point, n, known), operand_zero<L>(w.zero_point, n + 8, known)};
        unrolled<0, 4>([&](auto which) {
          constexpr int r = decltype(which)::value;
          const u32 two = operand<L, C::operand, i, r>(held, lane, zero[r % 2]);
          *reinterpret_cast<u32*>(panel_w + panel_byte(row + r % 2 * 8, step * kStep + r / 2 * 8 + 2 * t)) = two;
        });
      });
    }
    wait_for_copies<0>();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();

    for (int s = 0; s < kSegments; s++) {
      const int k = k0 + s * kSegment;
      if (k >= L::shape_k) break;
      // Multiply
      if (threadIdx.x == 0) {
        after_barrier();
        for (int step = 0; step < kSegment / kStep; step++) {
          const int bytes = (s * kSegment + step * kStep) * 2;
          multiply_128(sums, describe_matrix(shared_address(panel_w) + bytes), describe_matrix(shared_address(panel_x) + bytes), kProduct, step > 0);
        }
        arrive_after_products(&done);
      }
      wait_for_phase(&done, phase);
      phase ^= 1;
      after_barrier();
      // Scale what was summed
      const float scale = weight_scale<L>(w.weight_scale, scale_n, weight_group<L>(k));
#pragma unroll
      for (int c = 0; c < kSums; c += 16) {
        u32 part[16];
        read_16(part, sums + (u32(warp * 32) << 16) + c);
#pragma unroll
        for (int e = 0; e < 16; e++) total[c + e] = fmaf(as_float(part[e]), scale, total[c + e]);
      }
      before_barrier();
      __syncthreads();
    }
  }
  if (warp == 0) give_tensor_memory<kTensorColumns>(sums);

  // Secondary scales, bias
  if (my_n >= L::n) return;
  const float second = secondary_scale<L>(w.weight_scale_2, my_n), bias = bias_of<L>(w.bias, my_n);
#pragma unroll
  for (int c = 0; c < kSums; c++) {
    const int r = row_of<C>(lists, here, here.first + c);
    if (r >= 0) store<C::output>(y, i64(r) * L::n + my_n, fmaf(total[c], second, bias));
  }
}

}  // namespace hc
