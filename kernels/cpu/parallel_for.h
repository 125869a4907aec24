// parallel_for: splits a loop over the threads of one rank in a way that depends only on the loop's length and the
// number of threads, so that sums are bitwise reproducible. Only for the .cc files in this folder: no others are
// compiled with OpenMP.
//
// Ranks may be threads of one process, each with its own OpenMP team. With one thread or little work, the caller does
// all the work and wakes no team.
#pragma once

#include <algorithm>
#include <cstdint>
#include <omp.h>

#include "base/piece.h"
#include "kernels/cpu/test_hooks.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace trivet::TRIVET_CPU {

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// Part `index` of [0, n), split at multiples of `grain` into `parts` ranges of about equal size.
inline Range cut(int64_t n, int64_t grain, int parts, int index) {
  const int64_t grains = (n + grain - 1) / grain;
  return {std::min(n, grains * index / parts * grain), std::min(n, grains * (index + 1) / parts * grain)};
}

// The number of parts into which parallel_for splits [0, n): at most `threads`, each of at least one grain.
inline int parts_of(int threads, int64_t n, int64_t grain) {
  return static_cast<int>(std::min<int64_t>(threads, (n + grain - 1) / grain));
}

// ThreadSanitizer does not see the barriers in GCC's OpenMP library; these functions announce fork and join to it.
inline void release(char* token) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(token);
#endif
  (void)token;
}
inline void acquire(char* token) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(token);
#endif
  (void)token;
}

// Calls call(context, part) for each part in [0, parts), concurrently. OpenMP may provide fewer threads than requested.
// Threads read the arguments before ThreadSanitizer can know about the fork, so this function is not instrumented.
__attribute__((no_sanitize("thread"))) inline void run_team(int parts, void (*call)(const void*, int),
                                                            const void* context) {
  char fork = 0, join = 0;
  release(&fork);
#pragma omp parallel num_threads(parts)
  {
    acquire(&fork);
    for (int part = omp_get_thread_num(); part < parts; part += omp_get_num_threads()) call(context, part);
    release(&join);
  }
  acquire(&join);
}

// Calls body(range, part) for each part of [0, n). `grain`: the smallest range worth a thread of its own, and the
// granularity of the split. The body must not throw.
template <class F>
void parallel_for(int threads, int64_t n, int64_t grain, const F& body) {
  const int parts = parts_of(threads, n, grain);
  if (parts <= 1) {
    if (n > 0) body(Range{0, n}, 0);
    return;
  }
  const auto on_part = [&](int part) { body(cut(n, grain, parts, part), part); };
  if (only_last_parts) return on_part(parts - 1);
  run_team(
      parts, [](const void* f, int part) { (*static_cast<const decltype(on_part)*>(f))(part); }, &on_part);
}

// Treats all tensors as laid end to end, and calls f(i, range) for the elements of each tensor i that lie in `part`.
// size(i) is the length of tensor i.
template <class Size, class F>
void for_slices(size_t tensors, const Size& size, Range part, const F& f) {
  int64_t begin = 0;
  for (size_t i = 0; i < tensors && begin < part.end; begin += size(i), ++i) {
    const Range range{std::max<int64_t>(part.begin - begin, 0), std::min(part.end - begin, size(i))};
    if (range.begin < range.end) f(i, range);
  }
}

// The grain, counted in rows, for rows of `row_elements` elements each.
inline int64_t rows_per_grain(int64_t row_elements) {
  constexpr int64_t kElements = piece(16384, 256);  // a few microseconds of work: about the cost of waking a thread
  return std::max<int64_t>(1, kElements / std::max<int64_t>(1, row_elements));
}

// Calls body(row) for each of n rows.
template <class F>
void for_rows(int threads, int64_t n, int64_t row_elements, const F& body) {
  parallel_for(threads, n, rows_per_grain(row_elements), [&](Range rows, int) {
    for (int64_t row = rows.begin; row < rows.end; ++row) body(row);
  });
}

}  // namespace trivet::TRIVET_CPU
