// Copies from global to shared memory that go on while a block computes: cp.async, 16 bytes at a time (sm_80 and newer).
#pragma once

#include "config.cuh"

namespace hc {

HC_FN u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }

// 16 bytes, or zeros: `from` is not read then.
HC_FN void copy_16(u32 to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// 16 bytes from kBeyond bytes behind `from`, if `wanted`; else nothing is written either. No branch: the compiler puts idle instructions before the first
// copy behind each.
template <i64 kBeyond>
HC_FN void copy_16_if(bool wanted, u32 to, const void* from) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %3, 0; @p cp.async.cg.shared.global [%0], [%1+%2], 16; }" ::"r"(to), "l"(from), "n"(kBeyond),
               "r"(int(wanted))
               : "memory");
}

// Closes a group of copies; groups end in order.
HC_FN void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most kOpen groups of this thread are under way.
template <int kOpen>
HC_FN void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}

// Waits for the first kThreads threads of the block, which all come here.
template <int kThreads>
HC_FN void sync_first() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// What this thread has stored before is there for whoever sees what it stores after.
HC_FN void fence_of_blocks() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Between blocks of one launch: not by the first-level cache, which another block's stores do not reach.
template <class Word>
HC_FN void store_shared_by_blocks(Word* to, Word x) {
  __stcg(to, x);
}
template <class Word>
HC_FN Word load_shared_by_blocks(const Word* from) {
  return __ldcg(from);
}

}  // namespace hc
