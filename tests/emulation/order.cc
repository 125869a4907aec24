#include "tests/emulation/order.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "tests/emulation/grid.h"

namespace trivet::emulation {

thread_local bool clocks_run = false;

namespace {

constexpr size_t kBarriers = 64, kLine = 128;  // bytes

// Each thread's known clock, then how many of each barrier's phases are known to be over.
using Clock = std::vector<uint32_t>;

// A line of shared memory.
struct Line {
  int barrier = -1;  // barrier of the last copy that wrote the line
  uint32_t phase = 0;
  std::map<size_t, std::array<uint32_t, 32>> reads;  // per warp: each lane's clock at the end of its last products
};

struct Barrier {
  size_t index;
  std::map<size_t, uint32_t> passed;  // threads that have waited for the last phase, and their clocks
};

struct Clocks {
  std::vector<Clock> threads;
  std::map<const void*, Clock> places;
  std::map<const uint64_t*, Barrier> barriers;
  std::vector<Line> lines;
};
// Shared by all emulated threads of a block: Unobserved hides its accesses from ThreadSanitizer.
thread_local Clocks clocks;

Clock& clock_of_place(const void* place) {
  Clock& clock = clocks.places[place];
  clock.resize(clocks.threads[0].size());
  return clock;
}

// The clock of a barrier's completed phases.
Clock& clock_of_phases(const uint64_t* barrier) { return clock_of_place(reinterpret_cast<const char*>(barrier) + 1); }

void learn(Clock& to, const Clock& from) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = std::max(to[i], from[i]);
}

Barrier& at(const uint64_t* barrier) {
  Barrier& b = clocks.barriers.emplace(barrier, Barrier{clocks.barriers.size(), {}}).first->second;
  if (b.index >= kBarriers) broken("more barriers in shared memory than the emulation counts");
  return b;
}

uint32_t knows_phases(size_t thread, int barrier) {
  const Clock& clock = clocks.threads[thread];
  return clock[clocks.threads.size() + static_cast<size_t>(barrier)];
}

}  // namespace

void begin_clocks() {
  if (clocks_run) return;
  const Unobserved ours;
  const size_t count = size_t{blockDim.x} * blockDim.y * blockDim.z;
  clocks = {};
  clocks.threads.assign(count, Clock(count + kBarriers));
  for (size_t i = 0; i < count; ++i) clocks.threads[i][i] = 1;
  clocks.lines.resize((dynamic_shared_bytes() + kLine - 1) / kLine);
  clocks_run = true;
}

void clocks_leave(const void* place) {
  const Unobserved ours;
  const size_t self = thread_number();
  learn(clock_of_place(place), clocks.threads[self]);
  ++clocks.threads[self][self];
}

void clocks_pass(const void* place) {
  const Unobserved ours;
  learn(clocks.threads[thread_number()], clock_of_place(place));
}

Moment now() {
  const Unobserved ours;
  const size_t self = thread_number();
  return {self, clocks.threads[self][self]};
}

bool is_known(const Moment& moment) {
  const Unobserved ours;
  return clocks.threads[thread_number()][moment.thread] >= moment.clock;
}

void phases_are_over(const uint64_t* barrier, uint32_t phases) {
  const Unobserved ours;
  Clock& over = clock_of_phases(barrier);
  learn(over, clock_of_place(barrier));
  auto& [index, passed] = at(barrier);
  over[clocks.threads.size() + index] = phases;
  for (const auto& [thread, when] : passed)
    if (over[thread] < when)
      broken("mbarrier: a phase ends while thread " + std::to_string(thread) +
             " may still wait for the one before, and would wait for the next one then");
  passed.clear();
}

void clocks_pass_phase(const uint64_t* barrier) {
  const Unobserved ours;
  const size_t self = thread_number();
  learn(clocks.threads[self], clock_of_phases(barrier));
  at(barrier).passed[self] = clocks.threads[self][self];
}

void copy_writes(size_t to, size_t bytes, const uint64_t* barrier, uint32_t phase) {
  const Unobserved ours;
  const size_t self = thread_number();
  const Clock& mine = clocks.threads[self];
  for (size_t i = to / kLine; i < (to + bytes + kLine - 1) / kLine; ++i) {
    Line& line = clocks.lines[i];
    if (line.barrier >= 0 && knows_phases(self, line.barrier) < line.phase)
      broken("cp.async.bulk.tensor: nobody has told this thread that the last copy to the same place is complete");
    for (const auto& [warp, lanes] : line.reads)
      for (size_t lane = 0; lane < 32; ++lane)
        if (mine[32 * warp + lane] < lanes[lane])
          broken("cp.async.bulk.tensor: overwrites a product's operand, and thread " +
                 std::to_string(32 * warp + lane) + " has not told that the product is complete");
    line.reads.clear();
    line.barrier = static_cast<int>(at(barrier).index);
    line.phase = phase;
  }
}

void product_may_read(size_t warp, size_t from) {
  const Unobserved ours;
  const Line& line = clocks.lines[from / kLine];
  for (size_t lane = 0; line.barrier >= 0 && lane < 32; ++lane)
    if (knows_phases(32 * warp + lane, line.barrier) < line.phase)
      broken("wgmma: an operand that a copy brings, and no wait for its barrier by thread " +
             std::to_string(32 * warp + lane));
}

void product_has_read(size_t warp, size_t from) {
  const Unobserved ours;
  std::array<uint32_t, 32>& lanes = clocks.lines[from / kLine].reads[warp];
  for (size_t i = 32 * warp; i < 32 * warp + 32; ++i) lanes[i % 32] = clocks.threads[i][i];
}

}  // namespace trivet::emulation
