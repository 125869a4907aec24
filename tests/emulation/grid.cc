#include "tests/emulation/grid.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/emulation/fiber.h"

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

namespace trivet::emulation {
namespace {

struct Copy {
  void* to;
  const void* from;  // null: zeros
  size_t bytes;
};

struct Thread {
  enum State { ready, at_barrier, in_warp, ended } state = ready;
  uint3 index{};
  std::deque<std::vector<Copy>> copies;  // groups; the last one is open
};

struct Warp {
  void* lanes[32] = {};
  uint32_t here = 0, mask = 0;
  const char* what = nullptr;
};

// One block after another. Of one thread of the host.
class Block {
 public:
  void run(dim3 grid, dim3 size, size_t shared_bytes, const std::function<void()>& work, uint64_t seed);
  Thread& thread() { return threads_[current_]; }
  void* shared() const { return shared_; }
  void synchronize();
  void meet(uint32_t mask, const char* what, void* mine, void (*all)(void* const (&lanes)[32]));

 private:
  void run_threads(uint64_t seed);
  void wait(Thread::State state);
  void release(Thread::State state, uint32_t first, uint32_t mask);
  void open_barrier_if_all_wait();
  std::string describe() const;

  std::vector<std::unique_ptr<Fiber>> fibers_;  // kept from grid to grid
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  size_t current_ = 0, live_ = 0, waiting_ = 0;
  void* shared_ = nullptr;
};

thread_local Block* current_block = nullptr;

void Block::run(dim3 grid, dim3 size, size_t shared_bytes, const std::function<void()>& work, uint64_t seed) {
  const size_t count = size_t{size.x} * size.y * size.z;
  while (fibers_.size() < count) fibers_.push_back(std::make_unique<Fiber>());
  const std::unique_ptr<void, void (*)(void*)> memory(std::aligned_alloc(256, (shared_bytes + 255) / 256 * 256),
                                                      std::free);
  shared_ = memory.get();
  blockDim = size;
  gridDim = grid;
  for (unsigned int z = 0; z < grid.z; ++z)
    for (unsigned int y = 0; y < grid.y; ++y)
      for (unsigned int x = 0; x < grid.x; ++x) {
        threads_.assign(count, Thread());
        blockIdx = {x, y, z};
        warps_.assign((count + 31) / 32, Warp());
        for (size_t i = 0; i < count; ++i) {
          const auto n = static_cast<unsigned int>(i);
          threads_[i].index = {n % size.x, n / size.x % size.y, n / size.x / size.y};
          threads_[i].copies.emplace_back();
          fibers_[i]->begin(work);
        }
        live_ = count;
        waiting_ = 0;
        std::memset(shared_, 0xff, shared_bytes);
        run_threads(seed + ((uint64_t{z} * grid.y + y) * grid.x + x) * 0x9e3779b97f4a7c15u);
      }
}

void Block::run_threads(uint64_t seed) {
  std::vector<size_t> order(threads_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), std::minstd_rand(static_cast<unsigned int>(seed ^ seed >> 32)));
  while (live_ > 0) {
    bool any = false;
    for (const size_t i : order) {
      if (threads_[i].state != Thread::ready) continue;
      any = true;
      current_ = i;
      threadIdx = threads_[i].index;
      fibers_[i]->resume();
      if (!fibers_[i]->done()) continue;
      threads_[i].state = Thread::ended;
      --live_;
      open_barrier_if_all_wait();
    }
    if (!any && live_ > 0) broken("all threads of a block wait, for ever: " + describe());
  }
}

void Block::wait(Thread::State state) {
  const size_t self = current_;
  threads_[self].state = state;
  while (threads_[self].state != Thread::ready) Fiber::give_back();
}

void Block::synchronize() {
  ++waiting_;
  threads_[current_].state = Thread::at_barrier;
  open_barrier_if_all_wait();
  if (threads_[current_].state != Thread::ready) wait(Thread::at_barrier);
}

void Block::open_barrier_if_all_wait() {
  if (waiting_ == 0 || waiting_ < live_) return;
  waiting_ = 0;
  for (Thread& thread : threads_)
    if (thread.state == Thread::at_barrier) thread.state = Thread::ready;
}

void Block::meet(uint32_t mask, const char* what, void* mine, void (*all)(void* const (&lanes)[32])) {
  Warp& warp = warps_[current_ / 32];
  const size_t lane = current_ % 32, first = current_ / 32 * 32;
  if (!(mask >> lane & 1)) broken(std::string(what) + ": a lane that is not in its own mask");
  for (size_t other = 0; other < 32; ++other)
    if ((mask >> other & 1) && (first + other >= threads_.size() || threads_[first + other].state == Thread::ended))
      broken(std::string(what) + ": lane " + std::to_string(other) + " is in the mask, but has ended or never was");
  if (warp.here == 0) {
    warp.mask = mask;
    warp.what = what;
  } else if (warp.mask != mask || std::strcmp(warp.what, what) != 0) {
    broken(std::string("lanes of a warp meet in different instructions: ") + warp.what + " and " + what);
  }
  warp.lanes[lane] = mine;
  warp.here |= 1u << lane;
  if (warp.here != mask) return wait(Thread::in_warp);
  if (all) all(warp.lanes);
  for (void*& other : warp.lanes) other = nullptr;
  warp.here = 0;
  for (size_t other = 0; other < 32; ++other)
    if ((mask >> other & 1) && other != lane) threads_[first + other].state = Thread::ready;
}

std::string Block::describe() const {
  const auto count = [&](Thread::State state) {
    return std::to_string(
        std::count_if(threads_.begin(), threads_.end(), [&](const Thread& t) { return t.state == state; }));
  };
  std::string text = count(Thread::at_barrier) + " at a barrier, " + count(Thread::in_warp) + " in a warp's meeting, " +
                     count(Thread::ended) + " have ended";
  for (const Warp& warp : warps_)
    if (warp.here) return text + "; a warp waits in " + warp.what;
  return text;
}

}  // namespace

void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread, uint64_t seed) {
  thread_local Block of_this_thread;
  current_block = &of_this_thread;
  of_this_thread.run(grid, block, shared_bytes, thread, seed);
  current_block = nullptr;
}

void* dynamic_shared_memory() { return current_block->shared(); }
void synchronize_block() { current_block->synchronize(); }
void meet_warp(uint32_t mask, const char* what, void* mine, void (*all)(void* const (&lanes)[32])) {
  current_block->meet(mask, what, mine, all);
}

void copy_async(void* to, const void* from, size_t bytes, bool there) {
  if (reinterpret_cast<uintptr_t>(to) % bytes != 0 || reinterpret_cast<uintptr_t>(from) % bytes != 0)
    broken("an asynchronous copy of " + std::to_string(bytes) + " bytes whose addresses are not aligned to them");
  std::memset(to, 0xff, bytes);
  current_block->thread().copies.back().push_back({to, there ? from : nullptr, bytes});
}

void close_copies() { current_block->thread().copies.emplace_back(); }

void wait_copies(int pending) {
  std::deque<std::vector<Copy>>& groups = current_block->thread().copies;
  for (; groups.size() > static_cast<size_t>(pending) + 1; groups.pop_front())
    for (const Copy& copy : groups.front()) {
      if (copy.from) std::memcpy(copy.to, copy.from, copy.bytes);
      else std::memset(copy.to, 0, copy.bytes);
    }
}

void broken(const std::string& what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what.c_str());
  std::abort();
}

}  // namespace trivet::emulation
