// wgmma of one warpgroup: 64 rows x kN columns, 32 bytes of K, A from registers, B from shared memory, float32 or int32 sums.
//
//   lane = 4 * g + t of warp w holds   A: rows 16 w + g, + 8: four registers as in fragments.cuh
//                                      sums: d[4 j + c]: row 16 w + g + 8 (c / 2), column 8 j + 2 t + c % 2
//   B: kN rows of 128 bytes of K, chunks of 16 bytes exchanged within eight rows: chunk c of row r lies at c ^ r % 8 (128-byte swizzle)
//
// Registers of a multiplication under way must not be touched; what was written to before needs `ready`.
#pragma once

#include "barriers_sm90a.cuh"

namespace hc {

// Writes to shared memory by ordinary instructions and cp.async that this thread sees, seen by wgmma too.
HC_FN void publish_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

HC_FN void ready() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
HC_FN void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most kOpen groups are under way.
template <int kOpen>
HC_FN void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kOpen) : "memory");
}

// Turns of two warpgroups, each with a barrier of its own, at which the four warps of the other one arrive. Nothing that is computed depends on the order, so
// that who has waited as long as one instruction does goes on: about as long as the hardware lets a try wait, or kAgain: 0.1 ms more. A loop would stand
// between products. (Not by named barriers, of which one side only arrives: compute-sanitizer's racecheck loses count with them, docs/decisions/071.)
template <bool kAgain>
HC_FN void wait_for_turn(u64* mine, int parity) {
  if (phase_is_over(mine, parity) || !kAgain) return;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, 100000; }" ::"r"(shared_address(mine)), "r"(parity) : "memory");
}
// By one lane of each warp, which alone speaks: without a branch.
HC_FN void pass_turn(u64* of_other, bool speaks) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0]; }" ::"r"(shared_address(of_other)), "r"(int(speaks))
               : "memory");
}

// Where kThreads threads that assist wait for each other. Named barrier 4.
template <int kThreads>
HC_FN void sync_assistants() {
  asm volatile("bar.sync 4, %0;" ::"n"(kThreads) : "memory");
}

// Registers that a warpgroup gives up, and that another takes: from then on its threads have kCount.
template <int kCount>
HC_FN void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
HC_FN void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Keeps the compiler from moving reads or writes of sums across this place: it does not know that products are under way.
template <int kCount>
HC_FN void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
HC_FN void pin(int (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) asm volatile("" : "+r"(d[i])::"memory");
}

// Computes operands here, while products are under way, and not after the wait where they are used.
template <int kSteps>
HC_FN void pin(u32 (&a)[kSteps][4]) {
#pragma unroll
  for (int i = 0; i < kSteps; i++) asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
}

// A number that stays in a register: the compiler would work it out again where it is used.
HC_FN int held(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Two blocks of 8 x 8 numbers of 16 bits, turned: lane l has the address of row l % 8 of block l / 8, lane 4 * g + t numbers 2 t and 2 t + 1 of row g of
// each before they are.
HC_FN void store_turned(u32 address, u32 first, u32 second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(address), "r"(first), "r"(second) : "memory");
}

// B at `address` (start of its rows, a multiple of 1024, plus 32 for each step of K): eight rows are 1024 bytes, 128-byte swizzle.
HC_FN u64 describe_rows(u32 address) {
  constexpr u64 kRowsOf8 = 1024 >> 4, kSwizzle128 = 1;
  return u64((address & 0x3FFFF) >> 4) | u64(1) << 16 | kRowsOf8 << 32 | kSwizzle128 << 62;
}

// The same for each step of K, and from some row on: what changes is the low half alone.
struct Rows {
  u32 low, high;

  HC_FN explicit Rows(u32 address) : low(u32(describe_rows(address))), high(u32(describe_rows(address) >> 32)) {}
  HC_FN u64 step(int k, int first = 0) const { return u64(high) << 32 | (low + u32(2 * k + 8 * first)); }
};

#define HC_SUMS_4 "%0,%1,%2,%3"
#define HC_SUMS_8 HC_SUMS_4 ",%4,%5,%6,%7"
#define HC_SUMS_16 HC_SUMS_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define HC_SUMS_24 HC_SUMS_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define HC_SUMS_32 HC_SUMS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define HC_SUMS_64                                                                                                           \
  HC_SUMS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,"  \
             "%59,%60,%61,%62,%63"
#define HC_SUMS_128                                                                                           \
  HC_SUMS_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
  "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
  "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
  "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define HC_OUT_4(C, i) C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3])
#define HC_OUT_8(C, i) HC_OUT_4(C, i), HC_OUT_4(C, i + 4)
#define HC_OUT_16(C, i) HC_OUT_8(C, i), HC_OUT_8(C, i + 8)
#define HC_OUT_24(C, i) HC_OUT_16(C, i), HC_OUT_8(C, i + 16)
#define HC_OUT_32(C, i) HC_OUT_16(C, i), HC_OUT_16(C, i + 16)
#define HC_OUT_64(C, i) HC_OUT_32(C, i), HC_OUT_32(C, i + 32)
#define HC_OUT_128(C, i) HC_OUT_64(C, i), HC_OUT_64(C, i + 64)
#define HC_WGMMA(SHAPE, TAIL, C, COUNT, A0, A1, A2, A3, B, ADD)                                                        \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, " ADD ", 0; wgmma.mma_async.sync.aligned." SHAPE " {" HC_SUMS_##COUNT   \
               "}, {" A0 "," A1 "," A2 "," A3 "}, " B ", p" TAIL "; }"                                                 \
               : HC_OUT_##COUNT(C, 0)                                                                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)))
#define HC_WGMMA_OF(TYPES, STEP, TAIL, C)                                                                              \
  do {                                                                                                                 \
    if constexpr (kN == 8) HC_WGMMA("m64n8" STEP TYPES, TAIL, C, 4, "%4", "%5", "%6", "%7", "%8", "%9");               \
    if constexpr (kN == 16) HC_WGMMA("m64n16" STEP TYPES, TAIL, C, 8, "%8", "%9", "%10", "%11", "%12", "%13");         \
    if constexpr (kN == 32) HC_WGMMA("m64n32" STEP TYPES, TAIL, C, 16, "%16", "%17", "%18", "%19", "%20", "%21");      \
    if constexpr (kN == 48) HC_WGMMA("m64n48" STEP TYPES, TAIL, C, 24, "%24", "%25", "%26", "%27", "%28", "%29");       \
    if constexpr (kN == 64) HC_WGMMA("m64n64" STEP TYPES, TAIL, C, 32, "%32", "%33", "%34", "%35", "%36", "%37");      \
    if constexpr (kN == 128) HC_WGMMA("m64n128" STEP TYPES, TAIL, C, 64, "%64", "%65", "%66", "%67", "%68", "%69");    \
    if constexpr (kN == 256) HC_WGMMA("m64n256" STEP TYPES, TAIL, C, 128, "%128", "%129", "%130", "%131", "%132", "%133"); \
  } while (0)

// d = a * b^T, added to d where `add`. One step of K: 16 columns of 16 bits or 32 of 8 bits.
template <Operand kOperand, int kN>
HC_FN void wgmma(float (&d)[kN / 2], const u32 (&a)[4], u64 b, bool add) {
  static_assert(kN == 8 || kN == 16 || kN == 32 || kN == 48 || kN == 64 || kN == 128 || kN == 256, "rows of x in a tile");
  if constexpr (kOperand == Operand::f16) HC_WGMMA_OF(".f32.f16.f16", "k16", ", 1, 1, 0", "+f");
  if constexpr (kOperand == Operand::bf16) HC_WGMMA_OF(".f32.bf16.bf16", "k16", ", 1, 1, 0", "+f");
  if constexpr (kOperand == Operand::e4m3) HC_WGMMA_OF(".f32.e4m3.e4m3", "k32", ", 1, 1", "+f");
}
template <Operand kOperand, int kN>
HC_FN void wgmma(int (&d)[kN / 2], const u32 (&a)[4], u64 b, bool add) {
  static_assert(kOperand == Operand::s8, "int32 sums are of 8-bit integers");
  if constexpr (kOperand == Operand::s8) HC_WGMMA_OF(".s32.s8.s8", "k32", "", "+r");
}

}  // namespace hc
