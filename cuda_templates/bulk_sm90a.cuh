// Copies that the hardware makes by itself (TMA, sm_90): a box of rows, to several blocks of a cluster at once, or a run of bytes. One thread asks
// for them; a barrier of the stage counts their bytes.
//
//   cluster   blocks of neighbouring multiprocessors that reach each other's shared memory; the same place in another block has the same offset
//   barrier   full: one arrival, which says how many bytes are to come, and those bytes     free: one arrival of each warp of the cluster
#pragma once

#include "barriers_sm90a.cuh"

namespace hc {

// A matrix as the hardware addresses it: made by the host (gemm/tensor_map.py).
struct alignas(64) TensorMap {
  u64 opaque[16];
};

// One thread of a whole warp; the compiler then keeps what it asks for in registers of the warp.
HC_FN bool elected() {
  u32 yes;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xFFFFFFFF; selp.u32 %0, 1, 0, p; }" : "=r"(yes));
  return yes;
}

// What is the same in all threads of a warp, known as such.
HC_FN int same_in_warp(int x) { return __shfl_sync(0xFFFFFFFF, x, 0); }

HC_FN void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
HC_FN void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Barriers that were started are there for the other blocks of the cluster and for copies.
HC_FN void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

HC_FN void expect_bytes(u64* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// A run of bytes: places and length are multiples of 16.
HC_FN void copy_run(u32 to, const void* from, int bytes, u64* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
               "r"(shared_address(barrier))
               : "memory");
}

// A box of `map` whose first element is in `column` and `row`, to the same place in kBlocks blocks from block `first` of the cluster on, whose barriers all
// count it. One block: this one.
template <int kBlocks>
HC_FN void copy_box(u32 to, const TensorMap* map, int column, int row, u64* barrier, int first) {
  if constexpr (kBlocks == 1) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map),
                 "r"(column), "r"(row), "r"(shared_address(barrier))
                 : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
            to),
        "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(u16(((1 << kBlocks) - 1) << first))
        : "memory");
  }
}

// The address in block `rank` of the cluster of what `place` is in this one.
HC_FN u32 address_in(int rank, const void* place) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(place)), "r"(rank));
  return there;
}
// Where barriers of another block are, 8 bytes each; an arrival at one of them. What follows it are copies, which come later by themselves: nothing that this block has stored has to be seen.
HC_FN u32 barriers_in(int rank, const u64* first) { return address_in(rank, first); }
HC_FN void arrive_there(u32 barrier) { asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory"); }
// A word stored there: seen behind the next barrier of the cluster.
HC_FN void store_far(u32 to, float x) { asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory"); }
HC_FN void store_far(u32 to, int x) { asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(to), "r"(x) : "memory"); }

}  // namespace hc
