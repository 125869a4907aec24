// The mistake: every weight half follows its input half immediately. The gradient leaves a little earlier, but the idle
// time at the end stays empty.
#include "docs/course/exercises/zero_bubble.h"

#include <algorithm>

namespace trivet::exercise {

Program zero_bubble(int p, int m, int rank) {
  const int warm_up = std::min(p - 1 - rank, m);
  Program program;
  for (int i = 0; i < warm_up; ++i) program.push_back({OpKind::forward, i});
  for (int i = 0; i < m; ++i) {
    if (warm_up + i < m) program.push_back({OpKind::forward, warm_up + i});
    program.push_back({OpKind::backward_input, i});
    program.push_back({OpKind::backward_weight, i});
  }
  return program;
}

}  // namespace trivet::exercise
