// Stages of cluster_sm90a.cuh: what they hold, the warps that fill them, and the operands and scales that come out of them.
//
//   rows of x     kTileM x 128 bytes, chunks exchanged as in stages_sm80.cuh: boxes of a tensor map, kTileM / kCluster rows from each block of the cluster;
//                 rows that come in lists are copied chunk by chunk
//   words, scales, zero points   as in stages_sm80.cuh, whole lines at once
//   scales of x   [group of a tile][block of 64 rows of W, where it matters][kTileM], float32, where groups of activations have scales of their own:
//                 times those of W, where these are of blocks
//
// Host side, the same bytes: gemm/cluster_sm90a.py.
#pragma once

#include "bulk_sm90a.cuh"
#include "results_sm90a.cuh"
#include "stages_sm80.cuh"
#include "warpgroup_sm90a.cuh"

namespace hc {

template <class L, class C, class T>
struct ClusterShape : StageShape<L, T::threads - 128, T::threads / 128 - 1, T::tile_m, T::tile_k> {
  using Stage = StageShape<L, T::threads - 128, T::threads / 128 - 1, T::tile_m, T::tile_k>;
  using Stage::kTileM, Stage::kTileN, Stage::kTileK;
  static constexpr int kMultiplying = T::threads - 128, kProducer = kMultiplying / 32;  // threads; the first warp behind them
  static constexpr int kAssisting = 96;  // threads of the three warps behind that one
  // Registers of a thread, by eights: what the warpgroups of a block begin with is shared anew. A warpgroup that asks for more waits for ever.
  static constexpr int kAtFirst = 65536 / T::blocks / T::threads / 8 * 8;
  static constexpr int kRegistersOfProducer = C::task == Task::indexed ? 32 : 24;
  static constexpr int kRegisters = (kAtFirst * T::threads - kRegistersOfProducer * 128) / kMultiplying / 8 * 8;
  static constexpr int kCluster = T::cluster, kBoxRows = kTileM / kCluster;
  // Parts of K that are blocks of one cluster: each finishes some rows of x, whose sums the others send it
  static constexpr bool kJoined = T::joined && T::parts > 1;
  static constexpr int kInCluster = kJoined ? kCluster * T::parts : kCluster, kSlices = kJoined ? T::parts : 1, kSliceRows = kTileM / kSlices;
  static constexpr bool kGathers = C::task == Task::indexed;  // rows of x lie anywhere: copied one by one
  static constexpr int kStep = 256 / L::act_bits, kSteps = kTileK / kStep;
  static constexpr int kPart = ceil_to(Stage::kTiles, T::parts) / T::parts;  // parts of K, in tiles
  static constexpr bool kHalfs = C::operand == Operand::f16 || C::operand == Operand::bf16;
  // Sums of 8-bit operands: added up on the way, unless one factor is for all of K and the tensor cores' own sums are good enough
  // Fused scales are powers of two that the exponents of E4M3 operands have room for
  static constexpr bool kFolds = C::operand == Operand::e4m3 && L::scale_type == ScaleType::fused_e8m0 && Stage::kScales;
  static constexpr bool kScaledOnTheWay = !kHalfs && !one_scale<L, C>() && !(kFolds && C::act_scale != ActScale::group);
  static constexpr bool kOnTheWay = kScaledOnTheWay || (C::operand == Operand::e4m3 && !C::rounds);
  static constexpr int kFlush = kFolds ? C::act_group : C::flush;
  static constexpr int kSegmentK = kScaledOnTheWay && kFlush < kTileK ? kFlush : kTileK, kSegments = kTileK / kSegmentK;
  // Blocks that go on with another tile: copies of the next one come while results of one are stored, which therefore have a place of their own
  static constexpr bool kGoesOn = T::goes_on != 0;
  // groups of activations in a tile
  static constexpr int kActGroup = C::act_scale == ActScale::group ? C::act_group : 0;
  static constexpr int kActGroups = kActGroup == 0 ? 0 : kActGroup < kTileK ? kTileK / (kActGroup ? kActGroup : 1) : 1;
  static constexpr int kWholeGroupsOfRow = kActGroup ? ceil_to(L::k, kActGroup ? kActGroup : 1) / (kActGroup ? kActGroup : 1) : 1;
  // One scale of W for all rows of a warpgroup and columns of a group of activations: it is multiplied into those of activations, of which there are so many
  static constexpr bool kBlockScales =
      L::scale_place == ScalePlace::block && kActGroups > 0 && L::group_n % 64 == 0 && L::group_k % (kActGroup ? kActGroup : 1) == 0;
  static constexpr int kActSets = kBlockScales && L::group_n % kTileN != 0 ? kTileN / 64 : 1;
  static constexpr bool kOneFactor = kFolds || kBlockScales;  // of sums on the way: that of their row of x
  // With many rows the warpgroups take turns: one multiplies while the other one scales its sums, so that one set of those is enough. 256 rows of x leave
  // room for sums of 128: those are multiplied, then the others
  static constexpr bool kInTurns = kOnTheWay && kSegments == 1 && kTileM >= 128 && kMultiplying == 256;
  static constexpr int kProducts = kInTurns && kTileM == 256 ? 2 : 1;  // of a tile
  static constexpr int kRowsOfProduct = kTileM / kProducts, kSets = kInTurns ? 1 : 2, kSumsOfSet = kRowsOfProduct / 2;  // of sums on the way
  static constexpr int kStepsOfTurn = kProducts == 2 ? 1 : kSteps;  // a turn is passed when so many steps are asked for: the way there takes time
  static constexpr bool kShort = L::experts && kTileM == 256;  // half of the rows may be left out
  static constexpr int kOperandSets = kProducts == 2 && kActGroups > 0 ? 1 : 2;  // of tiles in turns; of items else
  // Steps whose operands are made at once: two sets of them are alive. Fewer where registers are wanted: for two more sets of sums, scales of x, a second block
  static constexpr int kSegmentSteps = kSegmentK / kStep;
  static constexpr int kMostSteps = kInTurns ? kSteps / 2 : kActGroups > 0 && kTileM > 64 ? 1 : T::steps;
  static constexpr int kItemSteps = kSegmentSteps < kMostSteps ? kSegmentSteps : kMostSteps;
  static constexpr int kItems = kSteps / kItemSteps, kItemsOfSegment = kSegmentSteps / kItemSteps;
  static constexpr int kActAt = Stage::kZerosAt + Stage::kGroups * Stage::kZeroBytes, kActBytes = 4 * kTileM;
  static constexpr int kStageBytes = ceil_to(kActAt + kActGroups * kActSets * kActBytes, 1024);
  // copies: arrivals at a full stage, and bytes that the hardware brings by itself
  static constexpr int kScaling = kActGroups > 0 ? 32 : 0, kFilling = 1 + kScaling + (kGathers ? kAssisting : 0), kLineBytes = 4 * Stage::kLineWords;
  static constexpr int kTileBytesOfW = Stage::kLines * kLineBytes + Stage::kGroups * (Stage::kScaleBytes + Stage::kZeroBytes);
  static constexpr int kExpected = kGathers ? kTileBytesOfW : Stage::kPanelBytes + kTileBytesOfW;
  // results
  using Aside = Beside<L, C, kTileM, kTileN, listed<C>(), listed<C>() || (kActGroups > 0), !kHalfs && !kFolds && !kScaledOnTheWay>;
  static constexpr int kAsides = kGoesOn ? 2 : 1, kAsideBytes = Aside::kBytes + 16;  // and which tile it is
  static constexpr int kTables = kGoesOn && kTileM > 64 ? kTileM / 64 : 1;  // results go by way of as many tables, one after the other
  static constexpr int kTable = kTileM / kTables * ((kGoesOn && C::output != Output::f32 ? 2 : 4) * kTileN + 16);
  static constexpr int kStages = T::stages * kStageBytes, kTableAt = kGoesOn ? kStages : 0;
  static constexpr int kAsideAt = kTableAt + kTable > kStages ? kTableAt + kTable : kStages;

  // block: of 64 rows of W.
  static HC_FN const float* x_scales_of(const u8* stage, int segment, int block) {
    return reinterpret_cast<const float*>(stage + kActAt + (segment * kActGroups / kSegments * kActSets + (kActSets > 1 ? block : 0)) * kActBytes);
  }

  static_assert(T::threads == 3 * 128 || T::threads == 5 * 128, "two or four warpgroups that multiply and one that copies");
  static_assert(Stage::kPanels == 1, "a tile of K is 128 bytes of x");
  static_assert(!kGathers || kCluster == 1, "each block copies its own rows");
  static_assert(Stage::kWholeK && Stage::kWholeN && L::shape_n / kTileN % kCluster == 0, "whole tiles and clusters");
  static_assert(!kOnTheWay || kTileM < 256 || kInTurns, "sums of 256 rows have one scale for all of a tile of K");
  static_assert(kSegmentK % kStep == 0 && kTileK % kSegmentK == 0, "whole segments");
  static_assert((T::parts - 1) * kPart < Stage::kTiles, "no part is empty");
  static_assert(kInCluster <= 8 && kTileM / 8 % kSlices == 0 && (!kJoined || L::experts == 0), "parts of one cluster finish whole groups of eight rows");
  static_assert(!kGoesOn || (T::parts == 1 && kTable % 16 == 0), "blocks that go on multiply all of K");
  static_assert(T::shared == kAsideAt + kAsides * kAsideBytes + 1024, "gemm/cluster_sm90a.py counts the same bytes");
};

template <class Number>
struct alignas(2 * sizeof(Number)) Pair {
  Number x[2];
};

// The stages of a block. kGathered: rows of x are not brought by the hardware alone, whose copies tensor cores see by themselves.
template <int kCount, int kBytes, bool kGathered>
struct Stages {
  u8* first;
  u64 *full, *free_again;

  using At = StageTurn<kCount>;
  static HC_FN At turn_of(int number) { return {number % kCount, number / kCount & 1}; }
  HC_FN u8* bytes(const At& at) const { return first + at.stage * kBytes; }
  // Until the tile is there; until its stage is free for it, which it is at first.
  HC_FN void wait(const At& at) const {
    wait_for_phase(full + at.stage, at.parity);
    if constexpr (kGathered) publish_to_tensor_cores();
  }
  HC_FN void wait_until_free(const At& at, int number) const {
    if (number >= kCount) wait_for_phase(free_again + at.stage, at.parity ^ 1);
  }
  // This warp is through with it, said to every block that copies into it: kCluster of them. free_there: `free_again` in the block that this lane tells.
  template <int kCluster>
  HC_FN void release(const At& at, int lane, u32 free_there) const {
    if (lane < kCluster) arrive_there(free_there + 8 * at.stage);
  }
};

// Lines of groups, kBytes of each for the rows of this block, which are `bits` wide.
template <class S, class L, int kBytes>
HC_FN void copy_groups_at_once(u32 to, const void* from, int bits, int first_n, int tile, u64* full) {
  if constexpr (kBytes > 0) {
    const u8* first = static_cast<const u8*>(from) + i64(tile * S::kTileK / L::group_k) * (L::shape_n * bits / 8) + first_n * bits / 8;
#pragma unroll
    for (int group = 0; group < S::kGroups; group++) copy_run(to + group * kBytes, first + group * (L::shape_n * bits / 8), kBytes, full);
  }
}

// What the kernel takes as x: a tensor map, or where rows are that lists name.
template <class C>
using GivenRows = typename Choose<C::task == Task::indexed, const u8*, TensorMap>::type;

// One thread asks for the copies of tiles from `begin` to before `end`. number: tiles that were asked for before.  first_row: of x.  rank: among the blocks
// that share rows of x, from `first_rank` of the cluster on.
template <class S, class L, class All, class Given>
HC_FN void fill_stages(const All& stages, int number, int begin, int end, const Given& x, const Tensors& w, int first_row, int rank, int first_rank,
                       int first_n) {
  using Line = Lines<L>;
  typename All::At at = All::turn_of(number);
  for (int tile = begin; tile < end; tile++, at = at.next()) {
    stages.wait_until_free(at, number + tile - begin);
    const u32 stage = shared_address(stages.bytes(at));
    u64* const full = stages.full + at.stage;
    expect_bytes(full, S::kExpected);
    if constexpr (!S::kGathers) copy_box<S::kCluster>(stage + rank * S::kBoxRows * 128, &x, tile * S::kTileK, first_row + rank * S::kBoxRows, full, first_rank);
    const u32* const words = w.weight + i64(tile) * (S::kLines * Line::kPitch) + i64(first_n / 64) * Line::kBlockWords;
#pragma unroll
    for (int line = 0; line < S::kLines; line++) copy_run(stage + S::kWordsAt + line * S::kLineBytes, words + line * Line::kPitch, S::kLineBytes, full);
    copy_groups_at_once<S, L, S::kScaleBytes>(stage + S::kScalesAt, w.weight_scale, scale_bytes<L>() * 8, first_n, tile, full);
    copy_groups_at_once<S, L, S::kZeroBytes>(stage + S::kZerosAt, w.zero_point, S::kZeroBits, first_n, tile, full);
  }
}

// Rows of x that lists name, chunks of 16 bytes as the boxes of a tensor map would lie: chunk thread % 8 of every twelfth row, whose numbers stay in
// registers.
template <class S, class L>
struct GatheredRows {
  static constexpr int kRowBytes = L::k * L::act_bits / 8, kOfRow = 8, kAtOnce = S::kAssisting / kOfRow, kRounds = ceil_to(S::kTileM, kAtOnce) / kAtOnce;
  static_assert(kAtOnce % 8 == 4, "places of rows that are kAtOnce apart differ by four chunks, in turns");
  const u8* from;    // chunk of row 0, column 0
  int row[kRounds];  // -1: none.  -2: not in the tile
  u32 to[2];         // in a stage, of rows of an even and of an odd round, less what rounds add
  int end;           // columns before it are there

  // rows: [kTileM] in shared memory.
  HC_FN GatheredRows(const u8* x, const int* rows, int thread) {
    const int chunk = thread % kOfRow, first = thread / kOfRow;
    from = x + 16 * chunk, end = kRowBytes - 16 * chunk;
#pragma unroll
    for (int i = 0; i < 2; i++) to[i] = chunk_at<S>(0, first + i * kAtOnce, chunk) - u32(i * kAtOnce * S::kTileBytes);
#pragma unroll
    for (int i = 0; i < kRounds; i++) row[i] = first + i * kAtOnce < S::kTileM ? rows[first + i * kAtOnce] : -2;
  }
  HC_FN void copy(u32 stage, int tile) const {
    const int column = tile * S::kTileBytes;
    const u8* const of_tile = from + column;
#pragma unroll
    for (int i = 0; i < kRounds; i++) {
      const bool there = row[i] >= 0 && column < end;
      const u8* const chunk = there ? of_tile + i64(row[i]) * kRowBytes : from;
      if ((i + 1) * kAtOnce <= S::kTileM || row[i] > -2) copy_16(stage + to[i % 2] + i * kAtOnce * S::kTileBytes, chunk, there);
    }
  }
};

struct NoRows {
  template <class Given>
  HC_FN NoRows(const Given&, const int*, int) {}
};

// Scales of the groups of activations in tile `tile`, those of W's blocks in them. Rows that are not there have 0.
template <class S, class L>
HC_FN void scales_of_tile(u8* stage, const float* x_scale, const Tensors& w, const int* rows, int first_n, int tile, int lane) {
  constexpr int kOfRow = S::kWholeGroupsOfRow, kRows = ceil_to(S::kTileM, 32) / 32, kAtOnce = kRows < 4 ? kRows : 4;
  float* to = reinterpret_cast<float*>(stage + S::kActAt) + lane;
#pragma unroll
  for (int group = 0; group < S::kActGroups; group++, to += S::kActSets * S::kTileM) {
    const int wanted = tile * S::kTileK / S::kActGroup + group, column = wanted < kOfRow ? wanted : kOfRow - 1;  // beyond K there is no activation
    float of_w[S::kActSets];
#pragma unroll
    for (int set = 0; set < S::kActSets; set++) {
      of_w[set] = 1.0f;
      const int of_k = weight_group<L>(tile * S::kTileK + group * S::kActGroup);
      if constexpr (S::kBlockScales) of_w[set] = weight_scale<L>(w.weight_scale, first_n + 64 * set, of_k);
    }
#pragma unroll 1
    for (int first = 0; first < kRows; first += kAtOnce) {
      float of_x[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        const int slot = 32 * (first + i) + lane, row = slot < S::kTileM ? rows[slot] : -1;
        of_x[i] = row >= 0 ? x_scale[i64(row) * kOfRow + column] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        if (32 * (first + i) + lane >= S::kTileM) continue;
#pragma unroll
        for (int set = 0; set < S::kActSets; set++) to[set * S::kTileM + 32 * (first + i)] = of_x[i] * of_w[set];
      }
    }
  }
}

// Three warps bring what the hardware does not: rows of lists together; scales of activations in turns, a tile each, since each waits for memory.
// Every lane says that its own are there.
template <class S, class L, class All, class Given>
HC_FN void assist_stages(const All& stages, int number, int begin, int end, const Given& x, const float* x_scale, const Tensors& w, const int* rows,
                         int first_n, int thread) {
  typename All::At at = All::turn_of(number);
  int turn = thread / 32;
  using Gathered = typename Choose<S::kGathers, GatheredRows<S, L>, NoRows>::type;
  const Gathered gathered(x, rows, thread);
  for (int tile = begin; tile < end; tile++, at = at.next()) {
    const bool scales = S::kActGroups > 0 && turn == 0;
    turn = turn > 0 ? turn - 1 : 2;
    if (!S::kGathers && !scales) continue;
    stages.wait_until_free(at, number + tile - begin);
    if constexpr (S::kGathers) {
      gathered.copy(shared_address(stages.bytes(at)), tile);
      arrive_with_copies(stages.full + at.stage);
    }
    if constexpr (S::kActGroups > 0) {
      if (!scales) continue;
      scales_of_tile<S, L>(stages.bytes(at), x_scale, w, rows, first_n, tile, thread % 32);
      arrive_now(stages.full + at.stage);
    }
  }
}

// Two neighbours in order "64", kBits each, from element `at` on (an even number): those of rows g and g + 8 of a row tile.
template <int kBits>
HC_FN u32 pair_at(const u8* group, int at) {
  static_assert(kBits == 4 || kBits == 8 || kBits == 16, "a pair is a byte, two or four");
  if constexpr (kBits == 4) return group[at / 2];
  if constexpr (kBits == 8) return reinterpret_cast<const u16*>(group)[at / 2];
  return reinterpret_cast<const u32*>(group)[at / 2];
}

// Two codes of E8M0, each in the low byte of a half, as bfloat16: they are its exponents, but for 0, which is 2^-127, and 255, which is NaN.
HC_FN u32 bf16_of_e8m0(u32 codes) {
#ifdef __CUDACC__
  u32 out;
  asm("max.u16x2 %0, %1, %2;" : "=r"(out) : "r"(codes << 7), "r"(0x00400040u));
  asm("fma.rn.bf16x2 %0, %1, %2, %1;" : "=r"(out) : "r"(out), "r"(0u));  // infinity times 0
  return out;
#else
  return to_half<Half::bf16>(decode_e8m0(u8(codes))) | u32(to_half<Half::bf16>(decode_e8m0(u8(codes >> 16)))) << 16;
#endif
}

// The two scales of a pair, each in both halves of a word, as 16-bit floats that hold them exactly.
template <class L, Half kHalf>
HC_FN void scales_twice(u32 (&to)[2], u32 pair) {
  constexpr bool kSame = L::scale_type == (kHalf == Half::f16 ? ScaleType::f16 : ScaleType::bf16);
  if constexpr (L::scale_type == ScaleType::e4m3 || L::scale_type == ScaleType::e5m2) {
    pair = f16_scales<L::scale_type>(pair);
    if constexpr (kHalf == Half::bf16) {
#pragma unroll
      for (int h = 0; h < 2; h++) to[h] = twice<kHalf>(half_to_float<Half::f16>(u16(pair >> (16 * h))));
      return;
    }
  } else if constexpr (L::scale_type == ScaleType::e8m0 && kHalf == Half::bf16) {
    pair = bf16_of_e8m0(byte_permute(pair, 0, 0x4140));
  } else if constexpr (!kSame) {
    static_assert(scale_bytes<L>() == 1, "bytes");
    const u32 first = pair & 255, second = pair >> 8;
    pair = to_half<kHalf>(weight_scale_at<L>(&first, 0)) | u32(to_half<kHalf>(weight_scale_at<L>(&second, 0))) << 16;
  }
  to[0] = byte_permute(pair, 0, 0x1010), to[1] = byte_permute(pair, 0, 0x3232);
}

// What a block multiplies: rows of x by rows of W from first_n on.
struct BlockTile {
  RowTile rows;
  int first_n;
};
static_assert(sizeof(BlockTile) == 16, "the room for it");

// The rows of W of a warp, and this lane: block of 64 rows and row tile in it; first_n: of this block of threads.
struct RowsOfWarp {
  int block, row_tile, lane, first_n;

  HC_FN int place() const { return (block * 8 + lane / 4) * 8 + 2 * row_tile; }  // in order "64"
  HC_FN int row(int h) const { return first_n + 64 * block + 16 * row_tile + 8 * h + lane / 4; }
};

// Scales of rows g and g + 8 for sums of the columns from k on.
template <class S, class L>
HC_FN void sums_scales(float (&to)[2], const u8* stage, const Tensors& w, const RowsOfWarp& here, int k) {
  static_assert(!S::kOneFactor, "there is a scale to multiply by");
  if constexpr (S::kScales) {
    constexpr int kBits = 8 * scale_bytes<L>();
    const u32 pair = pair_at<kBits>(stage + S::kScalesAt + k % S::kTileK / L::group_k * S::kScaleBytes, here.place());
    const u32 first = pair & ((1u << kBits) - 1), second = pair >> kBits;
    to[0] = weight_scale_at<L>(&first, 0), to[1] = weight_scale_at<L>(&second, 0);
  } else {
#pragma unroll
    for (int h = 0; h < 2; h++) to[h] = weight_scale<L>(w.weight_scale, here.row(h), weight_group<L>(k));
  }
}

// The operands of row tile kRowTile, in whose place the words of this warp's are, of an item of a tile of K that is there.
template <class S, class L, Operand kOperand, int kItem, int kRowTile>
HC_FN void make_operands_of(u32 (&to)[S::kItemSteps][4], const u8* stage, const Tensors& w, const RowsOfWarp& here, int tile) {
  constexpr Half kHalf = kOperand == Operand::f16 ? Half::f16 : Half::bf16;
  const u32* lines = reinterpret_cast<const u32*>(stage + S::kWordsAt) + here.block * Lines<L>::kBlockWords;
  u32 scale[2] = {}, zero[2] = {};
  FusedNumbers numbers[2];
#pragma unroll
  for (int of_item = 0; of_item < S::kItemSteps; of_item++) {
    constexpr int kStepsOfGroup = S::kSteps / S::kGroups;
    const int step = kItem * S::kItemSteps + of_item;
    if (of_item == 0 || step % kStepsOfGroup == 0) {
      const int group = step / kStepsOfGroup;
      if constexpr (S::kHalfs) {
        constexpr int kBits = 8 * scale_bytes<L>();
        u32 pair;
        if constexpr (S::kScales) {
          pair = pair_at<kBits>(stage + S::kScalesAt + group * S::kScaleBytes, here.place());
        } else {
          pair = pair_at<kBits>(static_cast<const u8*>(w.weight_scale), here.first_n + here.place());
        }
        scales_twice<L, kHalf>(scale, pair);
      }
      if constexpr (S::kFolds) {
        const u32 pair = pair_at<8>(stage + S::kScalesAt + group * S::kScaleBytes, here.place());
        numbers[0] = fused_numbers(pair & 255), numbers[1] = fused_numbers(pair >> 8);
      }
      if constexpr (S::kZeros) {
        const u32 pair = pair_at<S::kZeroBits>(stage + S::kZerosAt + group * S::kZeroBytes, here.place());
        zero[0] = pair & ((1u << S::kZeroBits) - 1), zero[1] = pair >> S::kZeroBits;
      } else {
#pragma unroll
        for (int h = 0; h < 2; h++) zero[h] = operand_zero<L>(w.zero_point, here.row(h), tile * S::kTileK + step * S::kStep);
      }
    }
    LaneWords<L> held;
    if constexpr (LaneWords<L>::kQuarters) {
      held.load_row_tile(lines, S::kLineWords, step, here.lane, here.row_tile);
    } else {
      held.load(lines, S::kLineWords, step, here.lane);
    }
    unrolled<0, 4>([&](auto r) {
      if constexpr (S::kFolds) {
        static_assert(L::interleave == Interleave::mode2, "fused E2M1 beside E4M3");
        to[of_item][r.value] = e4m3_of_mode2<r.value>(held.template whole<kRowTile, r.value>(), numbers[r.value % 2]);
      } else {
        const u32 number = operand<L, kOperand, kRowTile, r.value>(held, here.lane, zero[r.value % 2]);
        to[of_item][r.value] = S::kHalfs ? multiply_two<kHalf>(number, scale[r.value % 2]) : number;
      }
    });
  }
}

// The operands of this warp's row tile. Where row tiles share words, which one it is has to be known when compiling.
template <class S, class L, Operand kOperand, int kItem>
HC_FN void make_operands(u32 (&to)[S::kItemSteps][4], const u8* stage, const Tensors& w, const RowsOfWarp& here, int tile) {
  if constexpr (LaneWords<L>::kQuarters) {
    make_operands_of<S, L, kOperand, kItem, 0>(to, stage, w, here, tile);
  } else {
    unrolled<0, 4>([&](auto row_tile) {
      if (here.row_tile == row_tile.value) make_operands_of<S, L, kOperand, kItem, row_tile.value>(to, stage, w, here, tile);
    });
  }
}

}  // namespace hc
