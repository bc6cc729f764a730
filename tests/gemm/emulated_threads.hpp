// Threads of a GPU on a CPU, for the templates' own kernels: a thread is a stack of its own, which goes on until it has to wait. The blocks of one
// cluster run together, clusters one after the other. What does not go on is told with what each warp waits for.
//
// Copies and products that go on by themselves are `started`: they come at once, or not before every thread waits, which is as early and as late as
// they may. What is used before it was waited for, and what is overwritten before all are through with it, shows in one of the ways.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <deque>
#include <functional>
#include <string>
#include <vector>

#define HC_WARPS  // tasks.cuh: there are lanes that tell each other
#define __device__
#define __shared__ static  // barriers, which are known by their address and by their block, and what is the same in all blocks of a cluster

struct Place2 {
  unsigned x, y;
};
static Place2 threadIdx, blockIdx, gridDim;

#include "numbers.cuh"

namespace hc {

constexpr int kRoom = 227 << 10, kBlocks = 8, kBefore = 384;  // bytes that lie before those that a launch asks for: not at a multiple of 1024

// Who goes on first: in order; in the opposite order, blocks and clusters too; as far as they can the first two lanes of each warp, or the first
// warpgroup of each block, or all but the last three warps.
enum class Order : int { forwards, backwards, lanes, warpgroup, assistants };

struct How {
  int late_copies, late_products;
  Order order;
};

// A launch: `cluster` blocks side by side are a cluster; room: bytes of shared memory that are asked for.  blocks: of a multiprocessor.
struct Launch {
  int columns, tiles, threads, cluster, blocks, room;
};

// Memory that a kernel may read by copies.
struct Extent {
  const u8* first;
  i64 bytes;
};

// over: whether what is waited for is there.  tell: what that is.
struct Wait {
  bool (*over)(const Wait&);
  std::string (*tell)(const Wait&);
  const void* on;
  i64 value;
};

struct Fiber {
  static constexpr int kStack = 128 << 10;
  u8* stack;
  ucontext_t context;
  jmp_buf at;
  Wait wait;
  int number, block, thread;
  bool started, ended;
};

alignas(1024) static u8 memory[kBlocks][kRoom];
static How how;
static Launch launched;
static std::vector<Extent> known;
static std::vector<Fiber> fibers;
static Fiber* self;
static int runs = 0, first_block;
static std::deque<std::function<void()>> late;
static jmp_buf scheduler, end_of_run;
static char fault[8 << 10];

// Ends the run with what went wrong.
[[noreturn]] __attribute__((format(printf, 1, 2))) inline void fail(const char* what, ...) {
  va_list more;
  va_start(more, what);
  const int at = self ? snprintf(fault, sizeof fault, "block %d thread %d: ", self->block, self->thread) : 0;
  vsnprintf(fault + at, sizeof fault - at, what, more);
  va_end(more);
  _longjmp(end_of_run, 1);
}

// What a header keeps for each thread, and for each block, of the cluster that runs.
template <class State>
std::vector<State>& of_threads() {
  static std::vector<State> all;
  static int of_run = 0;
  if (of_run != runs) all.assign(fibers.size(), State()), of_run = runs;
  return all;
}
template <class State>
State& of_thread() {
  return of_threads<State>()[self->number];
}
template <class State>
std::vector<State>& of_blocks() {
  static std::vector<State> all;
  static int of_run = 0;
  if (of_run != runs) all.assign(launched.cluster, State()), of_run = runs;
  return all;
}
template <class State>
State& of_block() {
  return of_blocks<State>()[self->block];
}

__attribute__((noinline)) inline void wait_until(const Wait& wait) {
  if (wait.over(wait)) return;
  self->wait = wait;
  if (!_setjmp(self->at)) _longjmp(scheduler, 1);
}

// Lets others go on first, as they may.
__attribute__((noinline)) inline void step_back() {
  self->wait = {[](const Wait&) { return true; }, [](const Wait&) -> std::string { return "nothing"; }, nullptr, 0};
  if (!_setjmp(self->at)) _longjmp(scheduler, 1);
}

// Something that goes on by itself. Those that are late come in the order in which they were started.
inline void start(bool is_late, std::function<void()> what) {
  if (is_late) {
    late.push_back(std::move(what));
  } else {
    what();
  }
}

// Where so many threads meet.
struct Meeting {
  int arrived = 0, round = 0;
};
inline void meet(Meeting& at, int count, std::string (*tell)(const Wait&)) {
  const int round = at.round;
  if (++at.arrived == count) at.arrived = 0, at.round++;
  wait_until({[](const Wait& w) { return static_cast<const Meeting*>(w.on)->round != w.value; }, tell, &at, round});
}

struct Meetings {
  Meeting all, first, warps[32];
};
inline void meet_warp() {
  meet(of_block<Meetings>().warps[self->thread / 32], 32, [](const Wait&) -> std::string { return "the lanes of its warp"; });
}

inline bool is_over(int block) {
  for (const Fiber& f : fibers)
    if (f.block == block && !f.ended) return false;
  return true;
}

// The dynamic shared memory of this block: the emulation puts it in the place of `extern __shared__`.
inline u8* shared_memory() { return memory[self->block] + kBefore; }
inline u32 shared_address(const void* p) { return u32(static_cast<const u8*>(p) - memory[self->block]); }

// Places that a copy or a product reads or writes.
inline void check_room(u32 at, int bytes, const char* what) {
  if (at < u32(kBefore) || at + bytes > u32(kBefore + launched.room)) fail("%s outside the shared memory that was asked for", what);
}
inline void check_known(const void* from, int bytes, const char* what) {
  for (const Extent& e : known)
    if (from >= e.first && static_cast<const u8*>(from) + bytes <= e.first + e.bytes) return;
  fail("%s from outside every tensor", what);
}

// --- Turns

static std::function<void()> kernel;

inline void run_fiber() {
  kernel();
  self->ended = true;
  _longjmp(scheduler, 1);
}

inline void resume(Fiber& f) {
  self = &f, threadIdx = {unsigned(f.thread), 0}, blockIdx.x = first_block + f.block;
  if (_setjmp(scheduler)) {
    self = nullptr;
    return;
  }
  if (f.started) _longjmp(f.at, 1);
  f.started = true;
  static ucontext_t back;
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack, f.context.uc_stack.ss_size = Fiber::kStack, f.context.uc_link = &back;
  makecontext(&f.context, run_fiber, 0);
  setcontext(&f.context);
}

// What has turn i of so many.
inline int at_turn(int i, int count) { return how.order == Order::backwards ? count - 1 - i : i; }

inline bool is_first(const Fiber& f) {
  if (how.order == Order::lanes) return f.thread % 32 < 2;
  if (how.order == Order::warpgroup) return f.thread < 128;
  return how.order == Order::assistants && f.thread < launched.threads - 96;
}

// One turn for each thread of a block that can go on, of the first ones or of the others; whether any could.
inline bool turn_of(int block, bool first) {
  bool any = false;
  for (int i = 0; i < launched.threads; i++) {
    Fiber& f = fibers[block * launched.threads + at_turn(i, launched.threads)];
    if (is_first(f) != first || f.ended || (f.wait.over && !f.wait.over(f.wait))) continue;
    f.wait = {}, any = true;
    resume(f);
  }
  return any;
}

[[noreturn]] inline void fail_of_deadlock() {
  std::string told = "nothing can go on:";
  for (size_t i = 0, to; i < fibers.size(); i = to) {
    const Fiber& f = fibers[i];
    for (to = i + 1; to < fibers.size() && to % 32; to++)
      if (fibers[to].ended != f.ended || fibers[to].wait.on != f.wait.on || fibers[to].wait.value != f.wait.value) break;
    if (f.ended) continue;
    told += "\n  block " + std::to_string(f.block) + " warp " + std::to_string(f.thread / 32) + ", " + std::to_string(to - i) + " lanes: " + f.wait.tell(f.wait);
  }
  fail("%s", told.c_str());
}

// A block goes on as far as it can before the next one does.
inline void take_turns() {
  for (;;) {
    bool any = false, ended = true;
    for (int i = 0; i < 2 * launched.cluster && !any; i++) any = turn_of(at_turn(i % launched.cluster, launched.cluster), i < launched.cluster);
    if (any) continue;
    for (const Fiber& f : fibers) ended = ended && f.ended;
    if (late.empty() && ended) return;
    if (late.empty()) fail_of_deadlock();
    if (ended) fail("a cluster ended while copies or products were under way");
    const auto next = std::move(late.front());
    late.pop_front();
    next();
  }
}

// What holds when a cluster has ended, of headers that have something to say.
static std::vector<void (*)()> at_end;

inline void run_cluster() {
  static std::vector<u8*> stacks;
  runs++, late.clear(), self = nullptr;
  memset(memory, 0xFF, sizeof memory);
  fibers.resize(launched.cluster * launched.threads);
  for (size_t i = 0; i < fibers.size(); i++) {
    if (i == stacks.size()) stacks.push_back(static_cast<u8*>(mmap(nullptr, Fiber::kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)));
    Fiber& f = fibers[i];
    f.stack = stacks[i], f.number = int(i), f.block = int(i) / launched.threads, f.thread = int(i) % launched.threads;
    f.wait = {}, f.started = f.ended = false;
  }
  take_turns();
  for (const auto check : at_end) check();
}

// All blocks of a launch; what went wrong, or nothing.
inline const char* run(const Launch& l, const How& h, const Extent* extents, int count, std::function<void()> of_thread) {
  launched = l, how = h, kernel = std::move(of_thread), known.assign(extents, extents + count);
  gridDim = {unsigned(l.columns), unsigned(l.tiles)};
  if (_setjmp(end_of_run)) return fault;
  const int across = l.columns / l.cluster, clusters = across * l.tiles;
  if (l.columns % l.cluster || l.cluster > kBlocks || l.room + kBefore > kRoom) fail("no such launch");
  for (volatile int i = 0; i < clusters; i = i + 1) {
    const int cluster = at_turn(i, clusters);
    first_block = cluster % across * l.cluster, blockIdx.y = cluster / across;
    run_cluster();
  }
  return nullptr;
}

}  // namespace hc

inline int atomicAdd(int* to, int x) {
  const int was = *to;
  *to += x;
  return was;
}
inline void __syncthreads() {
  hc::meet(hc::of_block<hc::Meetings>().all, hc::launched.threads, [](const hc::Wait&) -> std::string { return "all threads of its block"; });
}
inline void __syncwarp() { hc::meet_warp(); }

namespace hc {
// What each lane of a warp gives; the others' as soon as all have given theirs.
struct OfLanes {
  int given[2][1024];
  int parity[1024] = {};
};
inline const int* told(int mine) {
  auto& lanes = of_block<OfLanes>();
  const int i = self->thread, parity = lanes.parity[i] ^= 1;
  lanes.given[parity][i] = mine;
  meet_warp();
  return lanes.given[parity] + i / 32 * 32;
}
}  // namespace hc
inline int __shfl_sync(unsigned, int x, int from) { return hc::told(x)[from]; }
inline int __shfl_up_sync(unsigned, int x, int by) {
  const int lane = hc::self->thread % 32, *const all = hc::told(x);
  return lane >= by ? all[lane - by] : x;
}
inline unsigned __ballot_sync(unsigned, bool x) {
  const int* const all = hc::told(x);
  unsigned out = 0;
  for (int lane = 0; lane < 32; lane++) out |= unsigned(all[lane]) << lane;
  return out;
}
inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
