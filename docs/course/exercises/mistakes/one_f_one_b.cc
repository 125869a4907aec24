// The mistake: p - rank forward passes of warm-up, one too many. The schedule runs, and just as fast, but each rank
// holds the activations of one micro-batch too many.
#include "docs/course/exercises/one_f_one_b.h"

#include <algorithm>

namespace trivet::exercise {

Program one_f_one_b(int p, int m, int rank) {
  const int warm_up = std::min(p - rank, m);
  Program program;
  for (int i = 0; i < warm_up; ++i) program.push_back({OpKind::forward, i});
  for (int i = 0; i < m; ++i) {
    if (warm_up + i < m) program.push_back({OpKind::forward, warm_up + i});
    program.push_back({OpKind::backward, i});
  }
  return program;
}

}  // namespace trivet::exercise
