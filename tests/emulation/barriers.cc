// Barriers in shared memory, barriers for some of a block's warps, and copies by the TMA.
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/emulation/grid.h"
#include "tests/emulation/order.h"
#include "tests/emulation/sites.h"
#include "tests/emulation/warpgroup.h"

namespace trivet::emulation {
namespace {

// PTX ISA, "mbarrier object": the state that the object tracks, stored in its eight bytes.
struct Phase {
  uint64_t parity : 1, arrivals : 20, pending : 20;
  int64_t bytes : 22;  // expected, but not yet arrived
  uint64_t mark : 1;
};
static_assert(sizeof(Phase) == 8);

struct Named {
  int threads = 0, arrived = 0;
};

struct Initialized {
  bool published = false;  // by a fence
  uint32_t phases = 0;     // completed
  Moment moment{};         // at initialization
};

// State of the running block.
struct Memory {
  uint64_t block = 0;
  std::map<const void*, Initialized> barriers;
  Named named[16];
  std::vector<unsigned char> async;  // shared memory as the async proxy sees it
};
thread_local Memory of_this_thread;

Memory& memory() {
  Memory& m = of_this_thread;
  if (m.block != block_number()) {
    m = {};
    m.block = block_number();
    m.async.assign(dynamic_shared_bytes(), 0xff);
  }
  return m;
}

Phase& phase_of(uint64_t* barrier, const char* what) {
  const auto found = memory().barriers.find(barrier);
  if (found == memory().barriers.end()) broken(std::string(what) + ": a barrier that nobody has initialised");
  if (!is_known(found->second.moment))
    broken(std::string(what) + ": no __syncthreads since the barrier was initialised");
  if (!found->second.published)
    broken(std::string(what) + ": no fence.mbarrier_init since the barrier was initialised");
  return *reinterpret_cast<Phase*>(barrier);
}

void advance(uint64_t* barrier) {
  Phase& phase = *reinterpret_cast<Phase*>(barrier);
  if (phase.pending != 0 || phase.bytes != 0) return;
  phase.parity ^= 1;
  phase.pending = phase.arrivals;
  phases_are_over(barrier, ++memory().barriers.at(barrier).phases);
  wake(barrier);
}

size_t offset_of(const void* pointer, size_t bytes, const char* what) {
  const auto* const base = static_cast<const unsigned char*>(dynamic_shared_memory());
  const auto* const at = static_cast<const unsigned char*>(pointer);
  if (at < base || at + bytes > base + dynamic_shared_bytes())
    broken(std::string(what) + ": an address that is not in the block's shared memory");
  return static_cast<size_t>(at - base);
}

struct Box {
  EncodedTileMap map;
  size_t to;
  int at[3];
  uint64_t* barrier;

  size_t bytes() const { return size_t{map.box[0]} * map.box[1] * map.box[2] * map.element_bytes; }
  // Calls f(offset in shared memory, source of 16 bytes, how many of those bytes are within the tensor).
  template <class F>
  void for_pieces(const F& f) const {
    const size_t row_bytes = map.box[0] * map.element_bytes;
    size_t i = 0;
    for (uint32_t z = 0; z < map.box[2]; ++z)
      for (uint32_t y = 0; y < map.box[1]; ++y)
        for (uint32_t x = 0; x < row_bytes; x += 16, i += 16) {
          const auto column = static_cast<int64_t>(x / map.element_bytes) + at[0];
          const int64_t matrix = at[1] + static_cast<int64_t>(y), row = at[2] + static_cast<int64_t>(z);
          const bool there = column >= 0 && matrix >= 0 && row >= 0 && matrix < static_cast<int64_t>(map.size[1]) &&
                             row < static_cast<int64_t>(map.size[2]) && column < static_cast<int64_t>(map.size[0]);
          const size_t left = there ? (map.size[0] - static_cast<size_t>(column)) * map.element_bytes : 0;
          const unsigned char* const from = map.data + column * map.element_bytes +
                                            matrix * static_cast<int64_t>(map.stride[0]) +
                                            row * static_cast<int64_t>(map.stride[1]);
          f(swizzled(static_cast<uint32_t>(to + i), map.swizzle_bytes), from, std::min<size_t>(left, 16));
        }
  }
};

}  // namespace

uint32_t address_in_shared(const void* pointer) {
  const auto misaligned = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(dynamic_shared_memory()) % 1024);
  return static_cast<uint32_t>(offset_of(pointer, 0, "shared memory")) + kFirstSharedAddress + misaligned;
}

const unsigned char* as_async_proxy(uint32_t address, size_t bytes, const char* what) {
  const Memory& m = memory();
  if (address < kFirstSharedAddress || address - kFirstSharedAddress + bytes > m.async.size())
    broken(std::string(what) + ": reads what is not in the block's shared memory");
  return m.async.data() + address - kFirstSharedAddress;
}

void fence_async_proxy() {
  if (skipped("fence.proxy.async")) return;
  const Unobserved not_this_threads;
  std::memcpy(memory().async.data(), dynamic_shared_memory(), memory().async.size());
}

void barrier_initialize(uint64_t* barrier, uint32_t arrivals) {
  if (reinterpret_cast<uintptr_t>(barrier) % 8 != 0 || arrivals < 1 || arrivals >= 1u << 20)
    broken("mbarrier.init: an address that is not aligned to 8 bytes, or a count that is not in 1 to 2^20 - 1");
  offset_of(barrier, 8, "mbarrier.init");
  begin_clocks();
  memory().barriers[barrier] = {.moment = now()};
  *reinterpret_cast<Phase*>(barrier) = {0, arrivals, arrivals, 0, 0};
}

void fence_initialized_barriers() {
  if (skipped("fence.mbarrier_init")) return;
  for (auto& [barrier, state] : memory().barriers) state.published = true;
}

void barrier_arrive(uint64_t* barrier, uint32_t expected_bytes) {
  if (skipped("mbarrier.arrive")) return;
  Phase& phase = phase_of(barrier, "mbarrier.arrive");
  if (phase.pending == 0) broken("mbarrier.arrive: more threads arrive than the barrier was initialised for");
  if (expected_bytes >= 1u << 20) broken("mbarrier.arrive.expect_tx: 2^20 bytes, or more");
  phase.bytes += expected_bytes;
  --phase.pending;
  leaves(barrier);
  advance(barrier);
}

void barrier_wait(uint64_t* barrier, uint32_t parity) {
  if (skipped("mbarrier.try_wait")) return;
  while (phase_of(barrier, "mbarrier.try_wait").parity == (parity & 1)) sleep_at(barrier, "mbarrier.try_wait");
  passes_phase(barrier);
}

void named_barrier(int barrier, int threads, bool waits) {
  if (skipped(waits ? "bar.sync" : "bar.arrive")) return;
  if (barrier < 1 || barrier > 15 || threads <= 0 || threads % 32 != 0 || threads > 1024)
    broken("bar: barriers are 1 to 15, 0 being __syncthreads', and threads come in whole warps");
  Named& named = memory().named[barrier];
  if (named.arrived > 0 && named.threads != threads) broken("bar: threads that do not agree on how many meet");
  named.threads = threads;
  leaves(&named);
  if (++named.arrived == threads) {
    named.arrived = 0;
    wake(&named);
  } else if (waits) {
    sleep_at(&named, "bar.sync");
  }
  if (waits) passes(&named);
}

void copy_tile(void* to, const void* map, int column, int matrix, int row, uint64_t* barrier) {
  constexpr const char* kWhat = "cp.async.bulk.tensor";
  const Unobserved not_this_threads;
  Box box{{}, 0, {column, matrix, row}, barrier};
  std::memcpy(&box.map, map, sizeof box.map);
  if (box.map.magic != kTileMapMagic) broken("cp.async.bulk.tensor: no tensor map");
  box.to = offset_of(to, box.bytes(), kWhat);
  // 128 bytes are required; the pattern repeats after eight swizzled rows, and its position depends on the address.
  if (box.to % std::max<size_t>(128, 8 * box.map.swizzle_bytes) != 0)
    broken("cp.async.bulk.tensor: a tile that is not aligned to its swizzle");
  phase_of(barrier, kWhat);
  copy_writes(box.to, box.bytes(), barrier, memory().barriers.at(barrier).phases + 1);
  auto* const shared = static_cast<unsigned char*>(dynamic_shared_memory());
  std::memset(shared + box.to, 0xff, box.bytes());
  std::memset(memory().async.data() + box.to, 0xff, box.bytes());
  later([box, shared] {
    box.for_pieces([&](size_t at, const unsigned char* from, size_t bytes) {
      std::memset(shared + at, 0, 16);
      if (bytes > 0) std::memcpy(shared + at, from, bytes);
      std::memcpy(memory().async.data() + at, shared + at, 16);
    });
    reinterpret_cast<Phase*>(box.barrier)->bytes -= static_cast<int64_t>(box.bytes());
    advance(box.barrier);
  });
}

}  // namespace trivet::emulation
