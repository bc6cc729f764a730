// The Hopper kernel family for many rows: wgmma on 256 or 128 rows of x, which the hardware copies once for a cluster of blocks.
//
// A block makes 128 or 256 rows of W x kTileM rows of x. Each of two or four warpgroups has a block of 64 rows, each of its warps a row tile of 16: an operand
// that is made once is multiplied by all of kTileM rows. A warpgroup of its own asks for the copies. The blocks of a cluster have the same rows of x: each asks
// for its share and has it sent to all, so that x is read from the second-level cache once for the cluster. Rows that come in lists are copied by the
// other three warps of that warpgroup. Where blocks go on (T::goes_on), there are as many as fit at once, and copies of the next tile come while results of one
// are stored.
// Tensor cores never wait for scales: those of 16-bit operands are multiplied into them, and so rounded once where they do not fit (C::rounds says that
// this was asked for); sums of 8-bit operands are scaled while the next ones are multiplied, or with many rows while the other warpgroup multiplies.
// What it takes, and why not: gemm/cluster_sm90a.py.
#pragma once

#include "cluster_stages_sm90a.cuh"
#include "parts_sm80.cuh"
#include "warpgroup_sm90a.cuh"

namespace hc {

template <class L, class C, class T>
__device__ void cluster_sm90a(const GivenRows<C>& x, const Tensors& all, const float* x_scale, const TaskLists& lists, const PartSums& sums_of_parts,
                              void* y, int m, int row_tiles) {
  using S = ClusterShape<L, C, T>;
  using Aside = typename S::Aside;
  constexpr int kSums = S::kTileM / 2;
  extern __shared__ u8 shared[];
  u8* const stages = shared + (1024 - shared_address(shared) % 1024) % 1024;
  // brought: what lies beside the stages is there, for a tile.  aside_free: all are through with it
  __shared__ u64 full[T::stages], free_again[T::stages], brought[S::kAsides], aside_free[S::kAsides], turns[2];

  // This block, this warp, this lane
  const int warp = same_in_warp(threadIdx.x / 32), lane = held(threadIdx.x % 32), t = lane % 4;
  const int rank = blockIdx.x % S::kCluster, of_clusters = blockIdx.x / S::kCluster, part_of_k = of_clusters % T::parts;
  const int first_rank = S::kJoined ? part_of_k * S::kCluster : 0;  // in the cluster
  const int begin = part_of_k * S::kPart, end = begin + S::kPart < S::kTiles ? begin + S::kPart : S::kTiles;
  const auto aside_of = [&](int count) { return Aside{stages + S::kAsideAt + count % S::kAsides * S::kAsideBytes}; };
  const auto kept_of = [&](int count) -> BlockTile& { return *reinterpret_cast<BlockTile*>(aside_of(count).first + Aside::kBytes); };  // not in registers
  const auto tile_at = [&](int across, int tile) { return BlockTile{tile_of<L, C, S::kTileM>(lists, tile, m), (across * S::kCluster + rank) * S::kTileN}; };
  // The only tile of a block that does not go on
  const BlockTile only = S::kGoesOn ? BlockTile{} : tile_at(of_clusters / T::parts, blockIdx.y);
  if (!S::kGoesOn && only.rows.expert < 0) return;  // the same for all blocks of a cluster
  if (threadIdx.x == 0) {
    for (int i = 0; i < T::stages; i++) start_barrier(full + i, S::kFilling), start_barrier(free_again + i, S::kProducer * S::kCluster);
    for (int i = 0; i < S::kAsides; i++) start_barrier(brought + i, S::kAssisting), start_barrier(aside_free + i, S::kProducer);
    for (int i = 0; i < 2 && S::kInTurns; i++) start_barrier(turns + i, 4);
    publish_barriers();
    if (!S::kGoesOn) kept_of(0) = only;
  }
  if (!S::kGoesOn) aside_of(0).name_rows(lists, only.rows, threadIdx.x);
  __syncwarp();
  if constexpr (S::kInCluster > 1) {
    cluster_arrive(), cluster_wait();
  } else {
    __syncthreads();
  }

  const Stages<T::stages, S::kStageBytes, S::kGathers> all_stages{stages, full, free_again};
  if (warp >= S::kProducer) {
    release_registers<S::kRegistersOfProducer>();
    // What these warps do for each tile of this block, and how many it has. count: tiles before it.
    const auto each_tile = [&](const auto& of_tile) {
      if constexpr (S::kGoesOn) {
        constexpr int kAcross = L::shape_n / (S::kTileN * S::kCluster);
        const int clusters = gridDim.x / S::kCluster;
        int count = 0;
        for (int at = of_clusters; at < row_tiles * kAcross; at += clusters) {
          const BlockTile here = tile_at(at % kAcross, at / kAcross);
          if (here.rows.expert < 0) {
            if constexpr (C::task == Task::contiguous) break;  // nor is there a later one
            continue;
          }
          of_tile(here, count++);
        }
        return count;
      } else {
        of_tile(only, 0);
        return 1;
      }
    };
    if (warp == S::kProducer) {
      each_tile([&](const BlockTile& here, int count) {
        if (!elected()) return;
        const Tensors w = of_expert<L>(all, here.rows.expert);
        fill_stages<S, L>(all_stages, count * S::kTiles, begin, end, x, w, here.rows.first, rank, first_rank, here.first_n);
      });
      return;
    }
    const int assisting = threadIdx.x - S::kMultiplying - 32;
    const int tiles = each_tile([&](const BlockTile& here, int count) {
      const int of = count % S::kAsides;
      const Aside aside = aside_of(count);
      const Tensors w = of_expert<L>(all, here.rows.expert);
      if constexpr (S::kGoesOn) {
        if (count >= S::kAsides) wait_for_phase(aside_free + of, count / S::kAsides + 1 & 1);
        if (assisting == 0) kept_of(count) = here;
        for (int r = assisting; r < S::kTileM; r += S::kAssisting) aside.name_rows(lists, here.rows, r);
        sync_assistants<S::kAssisting>();  // rows that others have named
      }
      if constexpr (S::Aside::kBrought || S::kGoesOn) {
        aside.template bring<S::kAssisting>(w, x_scale, here.rows, here.first_n, assisting);
        arrive_now(brought + of);
      }
      if constexpr (S::kGathers || S::kActGroups > 0) {
        assist_stages<S, L>(all_stages, count * S::kTiles, begin, end, x, x_scale, w, aside.rows_of_x(), here.first_n, assisting);
      }
    });
    if constexpr (S::kGoesOn) {
      if (tiles >= S::kAsides) wait_for_phase(aside_free + tiles % S::kAsides, tiles / S::kAsides + 1 & 1);
      if (assisting == 0) kept_of(tiles).rows.expert = -1;  // no more
      arrive_now(brought + tiles % S::kAsides);
    }
    return;
  }
  take_registers<S::kRegisters>();
  const u32 free_there = held(barriers_in(first_rank + lane % S::kCluster, free_again));
  // Of two warpgroups that take turns the first one begins
  const bool is_second = same_in_warp(warp >= 4);
  int before_turn = !is_second;  // parity of the phase behind which its next turn is

  StageTurn<T::stages> now, before;
  for (int count = 0;; count++) {
    const int of = count % S::kAsides;
    const Aside aside = aside_of(count);
    const BlockTile& kept = kept_of(count);
    if constexpr (S::kGoesOn) wait_for_phase(brought + of, count / S::kAsides & 1);
    const int expert = S::kGoesOn ? same_in_warp(kept.rows.expert) : only.rows.expert;
    if (S::kGoesOn && expert < 0) break;
    const int first_n = S::kGoesOn ? same_in_warp(kept.first_n) : only.first_n;
    const Tensors w = of_expert<L>(all, expert);
    const RowsOfWarp here_n{warp / 4, warp % 4, lane, first_n};

    // Sums over all of K; those that are not scaled yet: two sets in turns, or one where warpgroups take turns
    using Sum = typename Choose<C::operand == Operand::s8, int, float>::type;
    using Total = typename Choose<S::kOnTheWay, float, Sum>::type;
    Total total[1][kSums] = {};
    Sum part[S::kOnTheWay ? S::kSets : 1][S::kOnTheWay ? S::kSumsOfSet : 1];
    float scale[2][2] = {};          // of the two sets, rows g and g + 8
    const float* x_scales[2] = {};  // of the two sets, rows of x
    const auto add_scaled = [&](auto set, auto half) {
      constexpr int kSet = decltype(set)::value, kFirst = decltype(half)::value * S::kSumsOfSet;
      pin(part[kSet]);
#pragma unroll
      for (int e = 0; e < S::kSumsOfSet; e += 4) {
        float of_row[2] = {1.0f, 1.0f};
        if constexpr (S::kActGroups > 0) {
          const Pair<float> two = *reinterpret_cast<const Pair<float>*>(x_scales[kSet] + (kFirst + e) * 2 + 2 * t);
          of_row[0] = two.x[0], of_row[1] = two.x[1];
        }
#pragma unroll
        for (int c = 0; c < 4; c++) {
          const float value = float(part[kSet][e + c]);
          Total& sum = total[0][kFirst + e + c];
          if constexpr (S::kScaledOnTheWay && !S::kOneFactor) {
            sum = fmaf(S::kActGroups > 0 ? value * of_row[c % 2] : value, scale[kSet][c / 2], sum);
          } else {
            sum = S::kActGroups > 0 ? fmaf(value, of_row[c % 2], sum) : sum + value;
          }
        }
      }
    };

    // Rows of an expert end where they end: of a tile that is not half full the other half is left out. The loop over K is there twice, since products
    // beside a branch would wait for each other.
    const auto all_or_half = [&](const auto& multiply_all, auto all, auto half) {
      if constexpr (S::kShort) {
        if (same_in_warp(aside.row_of_y(kept.rows, S::kTileM / 2) >= 0)) {
          multiply_all(all);
        } else {
          multiply_all(half);
        }
      } else {
        multiply_all(all);
      }
    };

    // Multiplies tile `tile` item by item, adds up what was multiplied before, and makes the next operands in the place of those before. One group of
    // products is under way whenever an item begins, but for the very first: else the compiler waits for each of them.
    u32 a[S::kInTurns ? 2 * S::kOperandSets : 2][S::kItemSteps][4];
    const auto multiply = [&](auto rows_of_product, auto which, int tile, auto is_first) {
      constexpr int kNow = decltype(which)::value, kRows = decltype(rows_of_product)::value;
      const u8* const stage = all_stages.bytes(now);
      const Rows rows(shared_address(stage));
      unrolled<0, S::kItems>([&](auto of_tile) {
        constexpr int kItem = decltype(of_tile)::value, kSegment = kItem / S::kItemsOfSegment, kSet = (kNow * S::kSegments + kSegment) % 2;
        constexpr int kOperands = (kNow * S::kItems + kItem) % 2;
        constexpr bool kBegins = kItem % S::kItemsOfSegment == 0, kIsFirst = kItem == 0 && decltype(is_first)::value;
        if constexpr (S::kOnTheWay && kBegins) {
          if constexpr (S::kScaledOnTheWay && !S::kOneFactor) sums_scales<S, L>(scale[kSet], stage, w, here_n, tile * S::kTileK + kSegment * S::kSegmentK);
          if constexpr (S::kActGroups > 0) x_scales[kSet] = S::x_scales_of(stage, kSegment, here_n.block);
        }
        pin(pick<S::kOnTheWay>(part[S::kOnTheWay ? kSet : 0], total[0]));
        ready();
#pragma unroll
        for (int step = 0; step < S::kItemSteps; step++) {
          auto& sums = reinterpret_cast<Sum(&)[kRows / 2]>(pick<S::kOnTheWay>(part[S::kOnTheWay ? kSet : 0], total[0]));
          wgmma<C::operand, kRows>(sums, a[kOperands][step], rows.step(kItem * S::kItemSteps + step), !S::kOnTheWay || !kBegins || step > 0);
        }
        close_products();
        if constexpr (!kIsFirst) {
          wait_for_products<1>();
          if constexpr (S::kOnTheWay && kBegins) add_scaled(Constant<1 - kSet>(), Constant<0>());
          if constexpr (kItem == 0 && S::kActGroups > 0) __syncwarp();  // every lane has read the scales of x of the stage that the first ones release
          if (kItem == 0) all_stages.template release<S::kCluster>(before, lane, free_there);
        }
        if constexpr (kItem + 1 < S::kItems) {
          make_operands<S, L, C::operand, kItem + 1>(a[1 - kOperands], stage, w, here_n, tile);
          pin(a[1 - kOperands]);
        } else {
          before = now, now = now.next();
          if (tile + 1 < end) {
            all_stages.wait(now);
            make_operands<S, L, C::operand, 0>(a[1 - kOperands], all_stages.bytes(now), w, here_n, tile + 1);
            pin(a[1 - kOperands]);
          }
        }
      });
    };
    // Multiplies tile `tile`, by one half of its rows of x and then by the other where there are two, each when it is this warpgroup's turn: its products come
    // before the other one's, which go on while it scales its sums. (Passing the turn when most of a product is over was slower.)
    const auto multiply_in_turns = [&](auto products, auto which, int tile) {
      constexpr int kNow = decltype(which)::value, kOperands = 2 * kNow, kNext = S::kOperandSets == 2 ? 2 - kOperands : 0;
      const u8* const stage = all_stages.bytes(now);
      const Rows rows(shared_address(stage));
      if constexpr (S::kScaledOnTheWay && !S::kOneFactor) sums_scales<S, L>(scale[0], stage, w, here_n, tile * S::kTileK);
      if constexpr (S::kActGroups > 0) x_scales[0] = S::x_scales_of(stage, 0, here_n.block);
      before = now, now = now.next();
      unrolled<0, S::kProducts>([&](auto product) {
        constexpr int kProduct = decltype(product)::value;
        constexpr bool kThere = kProduct < decltype(products)::value, kIsFirst = kProduct == 0, kIsLast = kProduct + 1 == S::kProducts;
        if constexpr (kThere) {
          pin(part[0]);
          wait_for_turn<S::kProducts == 1>(turns + is_second, before_turn);
          before_turn ^= 1;
          ready();
          unrolled<0, S::kSteps>([&](auto step) {
            constexpr int kItem = step.value / S::kItemSteps, kOfItem = step.value % S::kItemSteps;
            if constexpr (step.value == S::kStepsOfTurn) pass_turn(turns + !is_second, lane == 0);
            wgmma<C::operand, S::kRowsOfProduct>(part[0], a[kOperands + kItem][kOfItem], rows.step(step.value, kProduct * S::kRowsOfProduct), step.value > 0);
          });
          close_products();
          if constexpr (S::kStepsOfTurn == S::kSteps) pass_turn(turns + !is_second, lane == 0);
        }
        const auto make_next = [&](auto item) {
          make_operands<S, L, C::operand, item.value>(a[kNext + item.value], all_stages.bytes(now), w, here_n, tile + 1);
          pin(a[kNext + item.value]);
        };
        if (S::kOperandSets == 2 && tile + 1 < end) {
          if constexpr (kIsFirst) all_stages.wait(now);
          unrolled<0, 2>([&](auto item) {
            if constexpr (S::kProducts == 1 || item.value == kProduct) make_next(item);
          });
        }
        if constexpr (kThere) {
          wait_for_products<0>();
          add_scaled(Constant<0>(), product);
        }
        if (S::kOperandSets == 1 && kIsLast && tile + 1 < end) {
          all_stages.wait(now);
          unrolled<0, 2>(make_next);
        }
      });
      if constexpr (S::kActGroups > 0) __syncwarp();
      all_stages.template release<S::kCluster>(before, lane, free_there);
    };
    all_stages.wait(now);
    make_operands<S, L, C::operand, 0>(a[0], all_stages.bytes(now), w, here_n, begin);
    pin(a[0]);
    int tile = begin + 1;
    if constexpr (S::kInTurns) {
      make_operands<S, L, C::operand, 1>(a[1], all_stages.bytes(now), w, here_n, begin);
      pin(a[1]);
      const auto multiply_all = [&](auto products) {
        tile = begin;
        if constexpr (S::kOperandSets == 2) {
          for (; tile + 1 < end; tile += 2) multiply_in_turns(products, Constant<0>(), tile), multiply_in_turns(products, Constant<1>(), tile + 1);
        }
        for (; tile < end; tile++) multiply_in_turns(products, Constant<0>(), tile);
      };
      all_or_half(multiply_all, Constant<S::kProducts>(), Constant<1>());
    } else {
      const auto multiply_all = [&](auto rows) {
        multiply(rows, Constant<0>(), begin, Constant<1>());
        for (; tile + 1 < end; tile += 2) {
          multiply(rows, Constant<1>(), tile, Constant<0>());
          multiply(rows, Constant<0>(), tile + 1, Constant<0>());
        }
        constexpr int kOfFirst = (S::kSegments - 1) % 2, kOfSecond = (2 * S::kSegments - 1) % 2;  // the last set of a tile
        if (tile < end) {
          multiply(rows, Constant<1>(), tile, Constant<0>());
          wait_for_products<0>();
          if constexpr (S::kOnTheWay) add_scaled(Constant<kOfSecond>(), Constant<0>());
        } else {
          wait_for_products<0>();
          if constexpr (S::kOnTheWay) add_scaled(Constant<kOfFirst>(), Constant<0>());
        }
      };
      all_or_half(multiply_all, Constant<S::kRowsOfProduct>(), Constant<S::kRowsOfProduct / 2>());
    }
    pin(total[0]);
    if constexpr (S::kGoesOn && !S::kInTurns) {
      if constexpr (S::kActGroups > 0) __syncwarp();
      all_stages.template release<S::kCluster>(before, lane, free_there);
    }

    // All copies have come and all warps are through with the stages, here and in the cluster, or with the table of the tile before
    sync_first<S::kMultiplying>();
    if constexpr (S::kInCluster > 1 && !S::kGoesOn) cluster_arrive();
    const auto leave = [] {
      if constexpr (S::kInCluster > 1 && !S::kJoined && !S::kGoesOn) cluster_wait();
    };
    // Sums over all of K of the rows of x that this block finishes, all of them but in a cluster of parts
    constexpr int kOwn = kSums / S::kSlices;
    Total slice[S::kJoined ? kOwn : 1];
    auto& finished = pick<S::kJoined>(slice, total[0]);
    if constexpr (S::kJoined) {
      cluster_wait();
      Total* const sent = reinterpret_cast<Total*>(stages) + threadIdx.x;  // [part][sum][thread]
      unrolled<0, S::kSlices>([&](auto to) {
        if (to.value == part_of_k) return;
        const u32 there = address_in(to.value * S::kCluster + rank, sent + part_of_k * kOwn * S::kMultiplying);
#pragma unroll
        for (int v = 0; v < kOwn; v++) store_far(there + 4 * v * S::kMultiplying, total[0][to.value * kOwn + v]);
      });
      cluster_arrive(), cluster_wait();
      // In the order of parts, as parts_sm80.cuh adds them up
      unrolled<0, S::kSlices>([&](auto mine) {
        if (mine.value != part_of_k) return;
#pragma unroll
        for (int v = 0; v < kOwn; v++) {
#pragma unroll
          for (int k = 0; k < S::kSlices; k++) {
            const Total part = k == mine.value ? total[0][mine.value * kOwn + v] : sent[(k * kOwn + v) * S::kMultiplying];
            slice[v] = k == 0 ? part : slice[v] + part;
          }
        }
      });
      sync_first<S::kMultiplying>();
    } else if constexpr (T::parts > 1) {
      const PartOf whose{int(blockIdx.y * (gridDim.x / T::parts)) + first_n / S::kTileN, part_of_k};
      if (!added_up<T::parts, S::kMultiplying>(total, sums_of_parts, reinterpret_cast<int*>(shared), whose)) return leave();
    }

    if constexpr (S::Aside::kBrought && !S::kGoesOn) wait_for_phase(brought, 0);
    const int first_slot = S::kJoined ? part_of_k * S::kSliceRows : 0;
    unrolled<0, S::kTables>([&](auto of_rows) {
      constexpr int kSumsOfTable = (S::kJoined ? kOwn : kSums) / S::kTables, kFirst = of_rows.value * kSumsOfTable;
      if constexpr (of_rows.value > 0) sync_first<S::kMultiplying>();
      store_results<L, C, S::kTileN, S::kMultiplying>(reinterpret_cast<const Total(&)[kSumsOfTable]>(finished[kFirst]), stages + S::kTableAt, aside, kept.rows,
                                                      first_slot + 2 * kFirst, first_n, 64 * here_n.block + 16 * here_n.row_tile, y);
    });
    if constexpr (!S::kGoesOn) return leave();
    __syncwarp();
    if (lane == 0) arrive_now(aside_free + of);
  }
  if constexpr (S::kInCluster > 1 && S::kGoesOn) cluster_arrive(), cluster_wait();
}

}  // namespace hc
