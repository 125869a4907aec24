// The places where kernels order their threads: fences, waits, arrivals and barriers. A test has them listed as a
// kernel passes them, and then skips one after another, to see whether the emulation notices (sites_test.cc).
#pragma once

#include <cstddef>
#include <cstdint>

namespace trivet::emulation {

// A call of a primitive, by the return addresses up to the bottom of the emulated thread's stack: a helper of a kernel
// has a site for each of its callers. (So kernels and the emulation are compiled with frame pointers.)
struct Site {
  static constexpr size_t kFrames = 20;
  const char* what;
  size_t frames;
  const void* returns[kFrames];
  uint64_t hash;
};

// In memory that processes may share.
struct Sites {
  static constexpr size_t kMost = 256;
  size_t count = 0;
  Site site[kMost];
  uint64_t skipped = 0;            // the hash of a site; 0: none
  int64_t steps = 0;               // of threads, as grid.cc counts them
  int64_t most_steps = INT64_MAX;  // a kernel that takes more goes on for ever
};
extern Sites* sites;  // null, but for that test

bool skipped_here(const char* what);
// Every primitive asks first, and does nothing if it is true.
inline bool skipped(const char* what) { return sites && skipped_here(what); }

}  // namespace trivet::emulation
