// How a block's threads are ordered. To ThreadSanitizer each fiber is a thread, and switching between fibers orders
// nothing. One thread's work precedes another's only if NVIDIA's documentation says so: at __syncthreads, __syncwarp,
// and barriers in shared memory; not at shuffles or tensor-core instructions. So a missing barrier is found in whatever
// order threads run. (A grid's blocks run one after another here; for races between them see block_writes.h.)
//
// ThreadSanitizer does not see accesses by Hopper's units. For these, in every build, each thread of a block with
// barriers in shared memory has a vector clock. The TMA may overwrite an operand only if every lane of the warps whose
// products read it has signalled completion, and the thread that starts the copy has learnt of it; and a product
// may read only data that each of its lanes has waited for.
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

// For this host thread's block. (The attribute is safe: the library that defines it is loaded at startup.)
extern thread_local bool clocks_run __attribute__((tls_model("initial-exec")));
void begin_clocks();  // no-op if the clocks are running
void clocks_leave(const void* place);
void clocks_pass(const void* place);
// now(): the running thread's moment. is_known(): whether a moment is this thread's own, or known to it.
struct Moment {
  size_t thread;
  uint32_t clock;
};
Moment now();
bool is_known(const Moment& moment);
// Threads that pass the barrier from now on learn what was signalled at it so far, and that `phases` phases are over.
void phases_are_over(const uint64_t* barrier, uint32_t phases);
void clocks_pass_phase(const uint64_t* barrier);

// Offsets and bytes in shared memory. The copy completes with the given phase of the barrier.
void copy_writes(size_t to, size_t bytes, const uint64_t* barrier, uint32_t phase);
// For products of this warp that read the bytes at these offsets: called at their start, and after the reads.
void product_may_read(size_t warp, size_t from);
void product_has_read(size_t warp, size_t from);

// ---- threads

// This thread's work so far precedes another thread's work after that thread has passed the same place.
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

// During its lifetime, this thread's accesses do not count as its own: it acts for others, as when a warp meets.
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
