// Ranks whose streams run as late or as early as their waits allow, depending on a seed. Single waits can be skipped:
// if no run fails without a wait, the wait is not needed, or the runs do not exercise it.
//
// A *place* is a call site of a wait: the host or a stream waits for an event, a stream or a gate. A place consists of
// the return addresses of that call and of its caller, so that a shared helper has a separate place for each caller.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/train/backend.h"

namespace trivet::test {

using Place = std::array<uintptr_t, 2>;  // innermost first; relative to the program's load address

struct Hostile {
  uint64_t seed = 0;    // 0: compute is late, all else early; 1: the reverse; others: drawn per stream, and compute
                        // is slow on every other rank, all else on the remaining ranks
  bool staged = false;  // ranks exchange memory through the host, as GPUs do without NCCL
  std::vector<Place> skipped{};                 // waits to skip
  std::function<void(const Place&)> touched{};  // called for each wait, on any thread
};

// Like make_split_backend(). Unless staged, collectives run on the device's streams, as NCCL's do, and fill the memory
// that they will write with NaN when they begin.
MakeBackend make_hostile_backend(const Hostile& hostile);

// For each place, its frames as "function (file:line)", innermost first.
std::vector<std::vector<std::string>> names_of(const std::vector<Place>& places);

// The result of `run` in a separate process, and the places that it touched; or how the process ended.
struct Ended {
  std::string result;  // "" if it did not return
  std::string how;     // "", "error: …", "signal 11", "hangs"
  std::vector<Place> places;
};
Ended run_hostile(const std::function<std::string(const MakeBackend&)>& run, Hostile hostile, unsigned limit_s = 60);

}  // namespace trivet::test
