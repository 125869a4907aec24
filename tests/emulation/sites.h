// The places where kernels order their threads: fences, waits, arrivals and barriers. A test lists them as a kernel
// passes them, and then skips one after another, to see whether the emulation notices (sites_test.cc).
#pragma once

#include <cstddef>
#include <cstdint>

namespace trivet::emulation {

// A call to a primitive, identified by the return addresses up to the bottom of the emulated thread's stack: a kernel's
// helper has one site per caller. (So kernels and the emulation are compiled with frame pointers.)
struct Site {
  static constexpr size_t kFrames = 20;
  const char* what;
  size_t frames;
  const void* returns[kFrames];
  uint64_t hash;
};

// In memory that processes can share.
struct Sites {
  static constexpr size_t kMost = 256;
  size_t count = 0;
  Site site[kMost];
  uint64_t skipped = 0;            // hash of the site to skip; 0: none
  int64_t steps = 0;               // of threads, as grid.cc counts them
  int64_t most_steps = INT64_MAX;  // a kernel that exceeds this counts as endless
};
extern Sites* sites;  // null except in sites_test.cc

bool skipped_here(const char* what);
// Every primitive calls this first, and does nothing if it returns true.
inline bool skipped(const char* what) { return sites && skipped_here(what); }

}  // namespace trivet::emulation
