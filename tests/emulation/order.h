// What ThreadSanitizer must be told of emulated GPU threads, so that it looks for races among them: each fiber is a
// thread to it, and going from one to another orders nothing. One thread comes before another only where a document of
// NVIDIA's says so: at __syncthreads, __syncwarp, and a barrier in shared memory; not in a shuffle or a tensor-core
// instruction. So a missing barrier is found in whatever order threads happen to run. (Blocks of a grid follow one
// another here: of what one writes and another reads nothing is said.) Without ThreadSanitizer these do nothing.
#pragma once

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

// What this thread has done so far comes before whatever any thread does after it has passed the same place.
inline void leaves([[maybe_unused]] void* place) {
#if defined(TRIVET_THREAD_SANITIZER)
  __tsan_release(place);
#endif
}
inline void passes([[maybe_unused]] void* place) {
#if defined(TRIVET_THREAD_SANITIZER)
  __tsan_acquire(place);
#endif
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
