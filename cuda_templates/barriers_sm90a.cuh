// Barriers in shared memory that copies arrive at by themselves (mbarrier, sm_90 and newer): a stage is full when all threads' copies are there, and
// free when all warps have multiplied it. Warpgroups then need not wait for each other in every tile.
//
// A barrier has phases, 0, 1, 2, ...; who waits gives the parity of the one that is to be over.
#pragma once

#include "copies_sm80.cuh"

namespace hc {

HC_FN void start_barrier(u64* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// This thread's copies so far, as one arrival, when they are there.
HC_FN void arrive_with_copies(u64* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

HC_FN void arrive_now(u64* barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(shared_address(barrier)) : "memory");
}

// Whether it is over, after as long as the hardware lets one try wait.
HC_FN bool phase_is_over(u64* barrier, int parity) {
  u32 over;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(over)
               : "r"(shared_address(barrier)), "r"(parity)
               : "memory");
  return over;
}
HC_FN void wait_for_phase(u64* barrier, int parity) {
  while (!phase_is_over(barrier, parity)) {
  }
}

}  // namespace hc
