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

#include "tests/emulation/block_writes.h"
#include "tests/emulation/fiber.h"
#include "tests/emulation/order.h"
#include "tests/emulation/runtime.h"
#include "tests/emulation/sites.h"

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

namespace trivet::emulation {
namespace {

struct Copy {
  void* to;
  const void* from;  // null: zeros
  size_t bytes;
};

enum class State : uint8_t { ready, at_barrier, in_warp, asleep, ended };
using CopyGroups = std::deque<std::vector<Copy>>;  // the last group is open

struct Warp {
  void* lanes[32] = {};
  uint32_t live = 0, here = 0, mask = 0;
  const char* what = nullptr;
  char places[2] = {};  // alternates between meetings
  bool turn = false;
};

// Runs one block after another. There is one per host thread.
class Block {
 public:
  void run(dim3 grid, dim3 size, size_t shared_bytes, const std::function<void()>& work, uint64_t seed,
           std::vector<int64_t>* pieces);
  void end_piece() {
    if (pieces_) pieces_->push_back(steps_);
    steps_ = 0;
  }
  CopyGroups& copies();  // of the running thread
  void* shared() const { return shared_; }
  size_t shared_bytes() const { return shared_bytes_; }
  uint64_t number() const { return number_; }
  size_t current() const { return current_; }
  void synchronize();
  void meet(uint32_t mask, const char* what, void* mine, void (*all)(void* const (&lanes)[32]));
  void sleep_at(const void* place, const char* what);
  void wake(const void* place);
  void later(std::function<void()> work) { later_.push_back(std::move(work)); }

 private:
  void run_block(size_t count, const std::function<void()>& work, uint64_t seed);
  void run_threads(uint64_t seed);
  bool run_warp(size_t warp);
  void wait();
  void open_barrier_if_all_wait();
  std::string describe() const;

  std::vector<std::unique_ptr<Fiber>> fibers_;  // reused across grids
  std::vector<State> states_;                   // [thread], like copies_
  std::vector<CopyGroups> copies_;              // empty until the first copy of a grid
  size_t order_[32] = {};                       // a shuffled order of a warp's lanes
  std::vector<Warp> warps_;
  std::vector<std::pair<const void*, const char*>> beds_;  // [thread]: where it sleeps, and in which instruction
  std::vector<std::function<void()>> later_;
  size_t current_ = 0, live_ = 0, waiting_ = 0;
  char barriers_[2] = {};  // alternating: a thread may reach the next barrier before another has passed this one
  bool turn_ = false;
  void* shared_ = nullptr;
  size_t shared_bytes_ = 0;
  uint64_t number_ = 0;
  std::vector<int64_t>* pieces_ = nullptr;
  int64_t steps_ = 0;  // thread resumptions in the current piece of work
};

thread_local Block* current_block = nullptr;

void Block::run(dim3 grid, dim3 size, size_t shared_bytes, const std::function<void()>& work, uint64_t seed,
                std::vector<int64_t>* pieces) {
  pieces_ = pieces;
  const size_t count = size_t{size.x} * size.y * size.z;
  while (fibers_.size() < count) fibers_.push_back(std::make_unique<Fiber>());
  const size_t misalignment = driver().misalignment;
  const std::unique_ptr<void, void (*)(void*)> memory(
      std::aligned_alloc(1024, (misalignment + shared_bytes + 1023) / 1024 * 1024), std::free);
  shared_ = static_cast<std::byte*>(memory.get()) + misalignment;
  shared_bytes_ = shared_bytes;
  copies_.clear();
  std::iota(std::begin(order_), std::end(order_), size_t{0});
  blockDim = size;
  gridDim = grid;
  // Visits each block once: strides by a number coprime to the number of blocks, from some start.
  const uint64_t all = uint64_t{grid.x} * grid.y * grid.z, last = driver().last_blocks;
  const uint64_t blocks = last ? std::min(last, all) : all;
  uint64_t step = seed * 0x9e3779b97f4a7c15u % blocks | 1;
  while (std::gcd(step, blocks) != 1) ++step;
  BlockWrites writes(blocks);
  for (uint64_t i = 0, some = seed % blocks; i < blocks; ++i, some = (some + step) % blocks) {
    const uint64_t at = all - blocks + some;
    blockIdx = {static_cast<unsigned int>(at % grid.x), static_cast<unsigned int>(at / grid.x % grid.y),
                static_cast<unsigned int>(at / grid.x / grid.y)};
    run_block(count, work, seed + at * 0x9e3779b97f4a7c15u);
    end_piece();
    writes.block_ended();
  }
}

void Block::run_block(size_t count, const std::function<void()>& work, uint64_t seed) {
  states_.assign(count, State::ready);
  warps_.assign((count + 31) / 32, Warp());
  beds_.assign(count, {});
  ++number_;
  clocks_run = false;
  for (CopyGroups& groups : copies_) groups.assign(1, {});
  std::memset(shared_, 0xff, shared_bytes_);
  for (size_t i = 0; i < count; ++i) {
    warps_[i / 32].live |= 1u << i % 32;
    fibers_[i]->begin(work);
  }
  live_ = count;
  waiting_ = 0;
  run_threads(seed);
}

// A warp runs as far as it can before the next warp does, so warps get as far apart as barriers allow.
void Block::run_threads(uint64_t seed) {
  std::minstd_rand random(static_cast<unsigned int>(seed ^ seed >> 32));
  std::shuffle(std::begin(order_), std::end(order_), random);
  std::vector<size_t> warps(warps_.size());
  std::iota(warps.begin(), warps.end(), size_t{0});
  while (live_ > 0) {
    std::shuffle(warps.begin(), warps.end(), random);
    bool any = false;
    for (const size_t warp : warps)
      while (run_warp(warp)) any = true;
    if (any) continue;
    if (later_.empty()) broken("all threads of a block wait, for ever: " + describe());
    const size_t which = random() % later_.size();
    const std::function<void()> work = std::move(later_[which]);
    later_.erase(later_.begin() + static_cast<std::ptrdiff_t>(which));
    const Unobserved no_threads;
    work();
  }
  if (!later_.empty()) broken("a block ends while its copies to shared memory are under way");
}

// Resumes each ready thread of the warp until it waits. Returns false if none was ready.
bool Block::run_warp(size_t warp) {
  bool any = false;
  for (const size_t lane : order_) {
    const size_t i = 32 * warp + lane;
    if (i >= states_.size() || states_[i] != State::ready) continue;
    any = true;
    ++steps_;
    if (sites && ++sites->steps > sites->most_steps) broken("a kernel goes on for ever");
    current_ = i;
    const auto n = static_cast<unsigned int>(i);
    threadIdx = {n % blockDim.x, n / blockDim.x % blockDim.y, n / blockDim.x / blockDim.y};
    fibers_[i]->resume();
    if (!fibers_[i]->done()) continue;
    states_[i] = State::ended;
    warps_[warp].live &= ~(1u << lane);
    --live_;
    open_barrier_if_all_wait();
  }
  return any;
}

void Block::wait() {
  const size_t self = current_;
  while (states_[self] != State::ready) Fiber::give_back();
}

void Block::synchronize() {
  ++waiting_;
  states_[current_] = State::at_barrier;
  char* const place = &barriers_[turn_];
  leaves(place);
  open_barrier_if_all_wait();
  wait();
  passes(place);
}

void Block::open_barrier_if_all_wait() {
  if (waiting_ == 0 || waiting_ < live_) return;
  waiting_ = 0;
  turn_ = !turn_;
  for (State& state : states_)
    if (state == State::at_barrier) state = State::ready;
}

void Block::meet(uint32_t mask, const char* what, void* mine, void (*all)(void* const (&lanes)[32])) {
  Warp& warp = warps_[current_ / 32];
  const size_t lane = current_ % 32, first = current_ / 32 * 32;
  if (!(mask >> lane & 1)) broken(std::string(what) + ": a lane that is not in its own mask");
  if (const uint32_t gone = mask & ~warp.live)
    broken(std::string(what) + ": lane " + std::to_string(std::countr_zero(gone)) +
           " is in the mask, but has ended or never was");
  if (warp.here == 0) {
    warp.mask = mask;
    warp.what = what;
  } else if (warp.mask != mask || (warp.what != what && std::strcmp(warp.what, what) != 0)) {
    broken(std::string("lanes of a warp meet in different instructions: ") + warp.what + " and " + what);
  }
  warp.lanes[lane] = mine;
  warp.here |= 1u << lane;
  char* const place = all ? nullptr : &warp.places[warp.turn];  // only __syncwarp orders memory
  if (place) leaves(place);
  if (warp.here != mask) {
    states_[current_] = State::in_warp;
    wait();
    if (place) passes(place);
    return;
  }
  if (place) passes(place);
  const Unobserved stands_for_all;
  if (all) all(warp.lanes);
  warp.turn = !warp.turn;
  std::fill(std::begin(warp.lanes), std::end(warp.lanes), nullptr);
  warp.here = 0;
  for (size_t other = first; mask; ++other, mask >>= 1)
    if (mask & 1) states_[other] = State::ready;
}

void Block::sleep_at(const void* place, const char* what) {
  beds_[current_] = {place, what};
  states_[current_] = State::asleep;
  wait();
}

void Block::wake(const void* place) {
  for (size_t i = 0; i < states_.size(); ++i)
    if (states_[i] == State::asleep && beds_[i].first == place) states_[i] = State::ready;
}

CopyGroups& Block::copies() {
  if (copies_.empty()) copies_.assign(states_.size(), CopyGroups(1));
  return copies_[current_];
}

std::string Block::describe() const {
  const auto count = [&](State state) { return std::to_string(std::count(states_.begin(), states_.end(), state)); };
  std::string text = count(State::at_barrier) + " at a barrier, " + count(State::in_warp) + " in a warp's meeting, " +
                     count(State::asleep) + " for a barrier in shared memory or one of some warps, " +
                     count(State::ended) + " have ended";
  for (size_t i = 0; i < states_.size(); ++i)
    if (states_[i] == State::asleep) {
      text += "; thread " + std::to_string(i) + " waits in " + beds_[i].second;
      break;
    }
  for (const Warp& warp : warps_)
    if (warp.here) return text + "; a warp waits in " + warp.what;
  return text;
}

}  // namespace

void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread, uint64_t seed,
              std::vector<int64_t>* pieces) {
  thread_local Block of_this_thread;
  current_block = &of_this_thread;
  of_this_thread.run(grid, block, shared_bytes, thread, seed, pieces);
  current_block = nullptr;
}

void take_tile() { current_block->end_piece(); }
void* dynamic_shared_memory() { return current_block->shared(); }
void synchronize_block() {
  if (!skipped("__syncthreads")) current_block->synchronize();
}
void meet_warp(uint32_t mask, const char* what, void* mine, void (*all)(void* const (&lanes)[32])) {
  current_block->meet(mask, what, mine, all);
}

void sleep_at(const void* place, const char* what) { current_block->sleep_at(place, what); }
void wake(const void* place) { current_block->wake(place); }
void later(std::function<void()> work) { current_block->later(std::move(work)); }
uint64_t block_number() { return current_block->number(); }
size_t thread_number() { return current_block->current(); }
size_t dynamic_shared_bytes() { return current_block->shared_bytes(); }

void copy_async(void* to, const void* from, size_t bytes, bool there) {
  if (reinterpret_cast<uintptr_t>(to) % bytes != 0 || reinterpret_cast<uintptr_t>(from) % bytes != 0)
    broken("an asynchronous copy of " + std::to_string(bytes) + " bytes whose addresses are not aligned to them");
  std::memset(to, 0xff, bytes);
  current_block->copies().back().push_back({to, there ? from : nullptr, bytes});
}

void close_copies() {
  if (!skipped("cp.async.commit_group")) current_block->copies().emplace_back();
}

void wait_copies(int pending) {
  if (skipped("cp.async.wait_group")) return;
  CopyGroups& groups = current_block->copies();
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
