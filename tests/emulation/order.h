// Which of a block's threads comes before which. To ThreadSanitizer each fiber is a thread, and going from one to
// another orders nothing. One thread comes before another only where a document of NVIDIA's says so: at __syncthreads,
// __syncwarp, and a barrier in shared memory; not in a shuffle or a tensor-core instruction. So a missing barrier is
// found in whatever order threads happen to run. (Blocks of a grid follow one another here: of what one writes and
// another reads nothing is said.)
//
// ThreadSanitizer does not see what Hopper's units read and write. For those, in every build, each thread of a block
// that has barriers in shared memory has a vector clock: the TMA may only overwrite what all 32 lanes of each warp
// whose products have read it have said so in a way that has reached the thread that starts the copy; and a product may
// only read what each of its lanes has waited for.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(TRIVET_THREAD_SANITIZER)
#include <sanitizer/tsan_interface.h>

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace trivet::emulation {

// ---- vector clocks

// Of the block that runs on this thread of the host. (The attribute: the library that has it is there from the start.)
extern thread_local bool clocks_run __attribute__((tls_model("initial-exec")));
void begin_clocks();  // unless they run
void clocks_leave(const void* place);
void clocks_pass(const void* place);
// A moment of the thread that is running; whether it is this thread's own, or has been told to it.
struct Moment {
  size_t thread;
  uint32_t clock;
};
Moment now();
bool is_known(const Moment& moment);
// What was told at the barrier so far is known to whoever passes it from now on; and that so many phases are over.
void phases_are_over(const uint64_t* barrier, uint32_t phases);
void clocks_pass_phase(const uint64_t* barrier);

// Offsets and bytes in shared memory. The copy completes with the phase-th phase of the barrier.
void copy_writes(size_t to, size_t bytes, const uint64_t* barrier, uint32_t phase);
// By products of this warp, from the bytes at these offsets: when they start, when they have read.
void product_may_read(size_t warp, size_t from);
void product_has_read(size_t warp, size_t from);

// ---- threads

// What this thread has done so far comes before whatever any thread does after it has passed the same place.
inline void leaves([[maybe_unused]] void* place) {
#if defined(TRIVET_THREAD_SANITIZER)
  __tsan_release(place);
#endif
  if (clocks_run) clocks_leave(place);
}
inline void passes([[maybe_unused]] void* place) {
#if defined(TRIVET_THREAD_SANITIZER)
  __tsan_acquire(place);
#endif
  if (clocks_run) clocks_pass(place);
}

inline void passes_phase(uint64_t* barrier) {
#if defined(TRIVET_THREAD_SANITIZER)
  __tsan_acquire(barrier);
#endif
  clocks_pass_phase(barrier);
}

// While it lives, this thread does what is not its own: it stands for others, as in a meeting of a warp.
class Unobserved {
 public:
#if defined(TRIVET_THREAD_SANITIZER)
  Unobserved() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unobserved() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  Unobserved() {}
  ~Unobserved() {}
#endif
  Unobserved(const Unobserved&) = delete;
  Unobserved& operator=(const Unobserved&) = delete;
};

}  // namespace trivet::emulation
