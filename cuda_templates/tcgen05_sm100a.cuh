// tcgen05 of one block on sm_100a: 128 rows x kN columns, 16 columns of K, A and B from shared memory, float32 sums in tensor memory.
//
//   A, B: rows of 128 bytes of K, chunks of 16 bytes exchanged within eight rows: chunk c of row r lies at c ^ r % 8 (128-byte swizzle)
//   sums: row r in lane r of tensor memory, column c in its column c; warp w reads lanes 32 w to 32 w + 31, a row a thread
//
// One thread issues; an mbarrier says when products are done. Facts: PTX ISA 9.0, tcgen05 instruction and matrix descriptors.
#pragma once

#include "barriers_sm90a.cuh"

namespace hc {

// Columns of tensor memory for the block, by one whole warp; the address is written to shared memory.
template <int kColumns>
HC_FN void take_tensor_memory(u32* address) {
  static_assert(kColumns >= 32 && (kColumns & (kColumns - 1)) == 0, "tensor memory comes in powers of two");
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(shared_address(address)), "n"(kColumns) : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
}

template <int kColumns>
HC_FN void give_tensor_memory(u32 address) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "n"(kColumns));
}

// A barrier that one arrival completes.
HC_FN void make_barrier(u64* barrier) {
  start_barrier(barrier, 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// The barrier is arrived at when all products issued by this thread are done.
HC_FN void arrive_after_products(u64* barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

HC_FN void before_barrier() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
HC_FN void after_barrier() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

// Rows at `address` (a multiple of 1024, plus 32 for each step of K): eight rows are 1024 bytes, 128-byte swizzle.
HC_FN u64 describe_matrix(u32 address) {
  constexpr u64 kRowsOf8 = 1024 >> 4, kVersion = 1, kSwizzle128 = 2;
  return u64((address & 0x3FFFF) >> 4) | u64(1) << 16 | kRowsOf8 << 32 | kVersion << 46 | kSwizzle128 << 61;
}

// float32 sums of 128 x kN products of 16-bit floats, both along K.
template <Half kHalf, int kN>
HC_FN constexpr u32 describe_product() {
  static_assert(kN % 16 == 0 && kN <= 256, "columns of 128 rows");
  constexpr u32 kFloat32 = 1, kType = kHalf == Half::bf16;
  return kFloat32 << 4 | kType << 7 | kType << 10 | u32(kN / 8) << 17 | u32(128 / 16) << 24;
}

// sums = a * b^T, added to what is there where `add`. By one thread.
HC_FN void multiply_128(u32 sums, u64 a, u64 b, u32 product, bool add) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }" ::"r"(sums), "l"(a), "l"(b),
               "r"(product), "r"(int(add))
               : "memory");
}

// 16 columns of this thread's row.
HC_FN void read_16(u32 (&d)[16], u32 sums) {
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, [%16];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]), "=r"(d[4]), "=r"(d[5]), "=r"(d[6]), "=r"(d[7]), "=r"(d[8]), "=r"(d[9]),
                 "=r"(d[10]), "=r"(d[11]), "=r"(d[12]), "=r"(d[13]), "=r"(d[14]), "=r"(d[15])
               : "r"(sums));
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}

}  // namespace hc
