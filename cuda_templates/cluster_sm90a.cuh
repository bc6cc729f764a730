// The Hopper kernel family for many rows: wgmma on 256 or 128 rows of x, which the hardware copies once for a cluster of blocks.
//
// A block makes 128 rows of W x kTileM rows of x. Each of two warpgroups has a block of 64 rows, each of its warps a row tile of 16: an operand that is
// made once is multiplied by all of kTileM rows. A warpgroup of its own asks for the copies. The blocks of a cluster have the same rows of x: each asks for
// its share and has it sent to all, so that x is read from the second-level cache once for the cluster.
// Between groups of scales nothing waits: scales of 16-bit operands are multiplied into them, and so rounded once where they do not fit (C::rounds says
// that this was asked for); 8-bit operands have one scale over all of K.
// What it takes, and why not: gemm/cluster_sm90a.py.
#pragma once

#include "bulk_sm90a.cuh"
#include "parts_sm80.cuh"
#include "stages_sm80.cuh"
#include "warpgroup_sm90a.cuh"

namespace hc {

template <class L, class C, class T>
struct ClusterShape : StageShape<L, 256, 2, T::tile_m, T::tile_k> {
  using Stage = StageShape<L, 256, 2, T::tile_m, T::tile_k>;
  using Stage::kTileM, Stage::kTileN, Stage::kTileK;
  static constexpr int kMultiplying = 256, kProducer = kMultiplying / 32;  // threads; the first warp behind them
  // Registers of a thread, by eights: what the three warpgroups of a block begin with is shared anew. A warpgroup that asks for more waits for ever.
  static constexpr int kAtFirst = 65536 / T::blocks / T::threads / 8 * 8, kRegistersOfProducer = 24;
  static constexpr int kRegisters = (kAtFirst * T::threads - kRegistersOfProducer * 128) / kMultiplying / 8 * 8;
  static constexpr int kCluster = T::cluster, kBoxRows = kTileM / kCluster;
  static constexpr int kStep = 256 / L::act_bits, kSteps = kTileK / kStep;
  static constexpr int kPart = ceil_to(Stage::kTiles, T::parts) / T::parts;  // parts of K, in tiles
  static constexpr bool kHalfs = C::operand == Operand::f16 || C::operand == Operand::bf16;
  static constexpr int kLineBytes = 4 * Stage::kLineWords;
  static constexpr int kTileBytesOfW = Stage::kLines * kLineBytes + Stage::kGroups * (Stage::kScaleBytes + Stage::kZeroBytes);
  static constexpr int kExpected = Stage::kPanelBytes + kTileBytesOfW;  // bytes of a stage
  static constexpr int kBeside = 4, kPitch = kTileN + kBeside, kStages = T::stages * Stage::kStageBytes, kTable = kTileM * kPitch * 4;

  static_assert(T::threads == kMultiplying + 128, "two warpgroups that multiply and one that copies");
  static_assert(Stage::kPanels == 1, "a tile of K is 128 bytes of x");
  static_assert(Stage::kWholeK && Stage::kWholeN && L::shape_n / kTileN % kCluster == 0, "whole tiles and clusters");
  static_assert(kHalfs || one_scale<L, C>(), "8-bit operands have one scale");
  static_assert((T::parts - 1) * kPart < Stage::kTiles, "no part is empty");
  static_assert(T::shared == (kStages > kTable ? kStages : kTable) + 1024, "gemm/cluster_sm90a.py counts the same bytes");
};

// Two neighbours in order "64", kBits each, from element `at` on (an even number): those of rows g and g + 8 of a row tile.
template <int kBits>
HC_FN u32 pair_at(const u8* group, int at) {
  static_assert(kBits == 4 || kBits == 8 || kBits == 16, "a pair is a byte, two or four");
  if constexpr (kBits == 4) return group[at / 2];
  if constexpr (kBits == 8) return reinterpret_cast<const u16*>(group)[at / 2];
  return reinterpret_cast<const u32*>(group)[at / 2];
}

// The two scales of a pair, each in both halves of a word, as 16-bit floats that hold them exactly.
template <class L, Half kHalf>
HC_FN void scales_twice(u32 (&to)[2], u32 pair) {
  constexpr bool kSame = L::scale_type == (kHalf == Half::f16 ? ScaleType::f16 : ScaleType::bf16);
  if constexpr (L::scale_type == ScaleType::e4m3 || L::scale_type == ScaleType::e5m2) {
    pair = half_operand<ScaleCodes<L::scale_type>, kHalf>(byte_permute(pair, 0, 0x4140), 0);
  } else if constexpr (!kSame) {
    static_assert(scale_bytes<L>() == 1, "bytes");
    const u32 first = pair & 255, second = pair >> 8;
    pair = to_half<kHalf>(weight_scale_at<L>(&first, 0)) | u32(to_half<kHalf>(weight_scale_at<L>(&second, 0))) << 16;
  }
  to[0] = byte_permute(pair, 0, 0x1010), to[1] = byte_permute(pair, 0, 0x3232);
}

// Lines of groups, kBytes of each for the rows of this block, which are kBits wide.
template <class S, class L, int kBytes>
HC_FN void copy_groups_at_once(u32 to, const void* from, int bits, int first_n, int tile, u64* full) {
  if constexpr (kBytes > 0) {
    const u8* first = static_cast<const u8*>(from) + i64(tile * S::kTileK / L::group_k) * (L::shape_n * bits / 8) + first_n * bits / 8;
#pragma unroll
    for (int group = 0; group < S::kGroups; group++) copy_run(to + group * kBytes, first + group * (L::shape_n * bits / 8), kBytes, full);
  }
}

template <class L, class C, class T>
__device__ void cluster_sm90a(const TensorMap& x, const Tensors& all, const float* x_scale, const TaskLists& lists, const PartSums& sums_of_parts,
                              void* y, int m) {
  using S = ClusterShape<L, C, T>;
  using Line = Lines<L>;
  constexpr int kSums = S::kTileM / 2;
  constexpr bool kIntegers = C::operand == Operand::s8;
  constexpr Half kHalf = C::operand == Operand::f16 ? Half::f16 : Half::bf16;
  extern __shared__ u8 shared[];
  u8* const stages = shared + (1024 - shared_address(shared) % 1024) % 1024;
  __shared__ u64 full[T::stages], free_again[T::stages];

  // This block, this warp, this lane
  const RowTile here = tile_of<L, C, S::kTileM>(lists, blockIdx.y, m);
  if (here.expert < 0) return;  // the same for all blocks of a cluster
  const Tensors w = of_expert<L>(all, here.expert);
  const int warp = same_in_warp(threadIdx.x / 32), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int rank = blockIdx.x % S::kCluster, of_clusters = blockIdx.x / S::kCluster, part = of_clusters % T::parts;
  const int tile_n = of_clusters / T::parts * S::kCluster + rank, first_n = tile_n * S::kTileN;
  const int begin = part * S::kPart, end = begin + S::kPart < S::kTiles ? begin + S::kPart : S::kTiles;
  if (threadIdx.x == 0) {
    for (int i = 0; i < T::stages; i++) start_barrier(full + i, 1), start_barrier(free_again + i, S::kProducer * S::kCluster);
    publish_barriers();
  }
  __syncwarp();
  if constexpr (S::kCluster > 1) {
    cluster_arrive(), cluster_wait();
  } else {
    __syncthreads();
  }

  using Sum = typename Choose<kIntegers, int, float>::type;
  const int block = warp / 4, i = warp % 4;  // of 64 rows of W; row tile
  if (warp >= S::kProducer) {
    release_registers<S::kRegistersOfProducer>();
    if (warp > S::kProducer || !elected()) return;
    for (int tile = begin; tile < end; tile++) {
      const int turn = (tile - begin) / T::stages, at = (tile - begin) % T::stages;
      if (turn > 0) wait_for_phase(free_again + at, (turn - 1) % 2);
      const u32 stage = shared_address(stages + at * S::kStageBytes);
      expect_bytes(full + at, S::kExpected);
      copy_box<S::kCluster>(stage + rank * S::kBoxRows * 128, &x, tile * S::kTileK, here.first + rank * S::kBoxRows, full + at);
      const u32* const words = w.weight + i64(tile) * (S::kLines * Line::kPitch) + i64(first_n / 64) * Line::kBlockWords;
#pragma unroll
      for (int line = 0; line < S::kLines; line++) {
        copy_run(stage + S::kWordsAt + line * S::kLineBytes, words + line * Line::kPitch, S::kLineBytes, full + at);
      }
      copy_groups_at_once<S, L, S::kScaleBytes>(stage + S::kScalesAt, w.weight_scale, scale_bytes<L>() * 8, first_n, tile, full + at);
      copy_groups_at_once<S, L, S::kZeroBytes>(stage + S::kZerosAt, w.zero_point, S::kZeroBits, first_n, tile, full + at);
    }
    return;
  }
  take_registers<S::kRegisters>();
  Sum sums[1][kSums] = {};
  {
    u32 a[2][S::kSteps][4];
    // The operands of this warp's row tile, of a tile of K that is there
    const auto make_of = [&](auto row_tile, u32(&to)[S::kSteps][4], const u8* stage) {
      const u32* lines = reinterpret_cast<const u32*>(stage + S::kWordsAt) + block * Line::kBlockWords;
      const int place = (block * 8 + g) * 8 + 2 * i;
      u32 scale[2] = {}, zero[2] = {};
#pragma unroll
      for (int step = 0; step < S::kSteps; step++) {
        constexpr int kStepsOfGroup = S::kSteps / S::kGroups;
        if (step % kStepsOfGroup == 0) {
          const int group = step / kStepsOfGroup;
          if constexpr (S::kHalfs) {
            constexpr int kBits = 8 * scale_bytes<L>();
            u32 pair;
            if constexpr (S::kScales) {
              pair = pair_at<kBits>(stage + S::kScalesAt + group * S::kScaleBytes, place);
            } else {
              pair = pair_at<kBits>(static_cast<const u8*>(w.weight_scale), first_n + place);
            }
            scales_twice<L, kHalf>(scale, pair);
          }
          if constexpr (S::kZeros) {
            const u32 pair = pair_at<S::kZeroBits>(stage + S::kZerosAt + group * S::kZeroBytes, place);
            zero[0] = pair & ((1u << S::kZeroBits) - 1), zero[1] = pair >> S::kZeroBits;
          } else {
#pragma unroll
            for (int h = 0; h < 2; h++) zero[h] = operand_zero<L>(w.zero_point, first_n + 64 * block + 16 * i + 8 * h + g, 0);
          }
        }
        LaneWords<L> held;
        if constexpr (LaneWords<L>::kQuarters) {
          held.load_row_tile(lines, S::kLineWords, step, lane, i);
        } else {
          held.load(lines, S::kLineWords, step, lane);
        }
        unrolled<0, 4>([&](auto r) {
          const u32 number = operand<L, C::operand, decltype(row_tile)::value, r.value>(held, lane, zero[r.value % 2]);
          to[step][r.value] = S::kHalfs ? multiply_two<kHalf>(number, scale[r.value % 2]) : number;
        });
      }
    };

    const auto make_operands = [&](u32(&to)[S::kSteps][4], const u8* stage) {
      if constexpr (LaneWords<L>::kQuarters) {
        make_of(Constant<0>(), to, stage);
      } else {
        unrolled<0, 4>([&](auto row_tile) {
          if (i == row_tile.value) make_of(row_tile, to, stage);
        });
      }
    };

    // Multiplies tile `tile` by its operands, and makes the next ones meanwhile, in the place of those before
    const auto multiply = [&](auto which, int tile) {
      constexpr int kNow = decltype(which)::value, kNext = 1 - kNow;
      const u32 stage = shared_address(stages + (tile - begin) % T::stages * S::kStageBytes);
      pin(sums[0]);
      ready();
#pragma unroll
      for (int step = 0; step < S::kSteps; step++) wgmma<C::operand, S::kTileM>(sums[0], a[kNow][step], describe_rows(stage + 32 * step), true);
      close_products();
      wait_for_products<1>();
      if (tile > begin) {
        const int before = (tile - 1 - begin) % T::stages;
        if (lane < S::kCluster) arrive_at(free_again + before, lane);
      }
      if (tile + 1 < end) {
        const int turn = (tile + 1 - begin) / T::stages, at = (tile + 1 - begin) % T::stages;
        wait_for_phase(full + at, turn % 2);
        make_operands(a[kNext], stages + at * S::kStageBytes);
        pin(a[kNext]);
      }
    };

    wait_for_phase(full, 0);
    make_operands(a[0], stages);
    pin(a[0]);
    for (int tile = begin; tile < end; tile += 2) {
      multiply(Constant<0>(), tile);
      if (tile + 1 < end) multiply(Constant<1>(), tile + 1);
    }
    wait_for_products<0>();
    pin(sums[0]);
  }

  // All copies have come and all warps are through with the stages, here and in the cluster
  sync_first<S::kMultiplying>();
  if constexpr (S::kCluster > 1) cluster_arrive();
  const auto leave = [] {
    if constexpr (S::kCluster > 1) cluster_wait();
  };
  if constexpr (T::parts > 1) {
    const PartOf of{blockIdx.y * (L::shape_n / S::kTileN) + tile_n, part};
    if (!added_up<T::parts, S::kMultiplying>(sums, sums_of_parts, reinterpret_cast<int*>(shared), of)) return leave();
  }

  // By way of shared memory, so that neighbouring threads store neighbouring rows of W: [row of x][row of W, and kBeside words]
  Sum* const table = reinterpret_cast<Sum*>(stages);
#pragma unroll
  for (int e = 0; e < kSums; e++) {
    table[(e / 4 * 8 + 2 * t + e % 2) * S::kPitch + 64 * block + 16 * i + g + e % 4 / 2 * 8] = sums[0][e];
  }
  sync_first<S::kMultiplying>();
  // Row scales, secondary scales, bias; two neighbours at once
  constexpr float kUnit = operand_unit<L, C::operand>();
  const int column = 2 * (threadIdx.x % (S::kTileN / 2)), n = first_n + column;
  if (n < L::n) {
    float factor[2], bias[2], second[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      factor[h] = S::kHalfs ? 1.0f : kUnit * weight_scale<L>(w.weight_scale, n + h, 0);
      second[h] = secondary_scale<L>(w.weight_scale_2, n + h), bias[h] = bias_of<L>(w.bias, n + h);
    }
#pragma unroll 4
    for (int j = threadIdx.x / (S::kTileN / 2); j < S::kTileM; j += S::kMultiplying / (S::kTileN / 2)) {
      const int r = row_of<C>(lists, here, here.first + j);
      if (r < 0) continue;
      const float of_row = C::act_scale == ActScale::token ? x_scale[r] : 1.0f;
      float value[2];
#pragma unroll
      for (int h = 0; h < 2; h++) value[h] = fmaf(float(table[j * S::kPitch + column + h]) * factor[h] * of_row, second[h], bias[h]);
      if (L::n % 2 == 0) {
        store_two<C::output>(y, i64(r) * L::n + n, value[0], value[1]);
      } else {
        store<C::output>(y, i64(r) * L::n + n, value[0]);
        if (n + 1 < L::n) store<C::output>(y, i64(r) * L::n + n + 1, value[1]);
      }
    }
  }
  leave();
}

}  // namespace hc
