// Ranks whose streams run as late or as early as their waits allow, by a seed, and from which one wait can be taken: a
// wait that no run misses is not needed, or the runs do not ask for it.
//
// A *place* is where a wait is called: an event, a stream or a gate is waited for, by the host or by a stream. It is
// the return address of that call and of the call around it, so that what several callers share is a place for each.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/train/backend.h"

namespace trivet::test {

using Place = std::array<uintptr_t, 2>;  // innermost first; relative to the program's beginning

struct Hostile {
  uint64_t seed = 0;    // 0: compute is late and all else early; 1: the other way round; others: each stream by
                        // itself, and on every other rank compute is slow, on the rest all else
  bool staged = false;  // ranks exchange memory through the host, as GPUs do without NCCL
  std::vector<Place> skipped{};                 // waits that are left out
  std::function<void(const Place&)> touched{};  // hears of each wait, on any thread
};

// Like make_split_backend. Unless staged, collectives run on the device's streams, as NCCL's do, and the memory that
// one is going to write is full of NaN from its beginning on.
MakeBackend make_hostile_backend(const Hostile& hostile);

// Of each frame of each place "function (file:line)", innermost first.
std::vector<std::vector<std::string>> names_of(const std::vector<Place>& places);

// What `run` returns in a process of its own, with the places that it touched; or how it ended.
struct Ended {
  std::string result;  // "" where it did not return
  std::string how;     // "", "error: …", "signal 11", "hangs"
  std::vector<Place> places;
};
Ended run_hostile(const std::function<std::string(const MakeBackend&)>& run, Hostile hostile, unsigned limit_s = 60);

}  // namespace trivet::test
