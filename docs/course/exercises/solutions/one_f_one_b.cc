#include "docs/course/exercises/one_f_one_b.h"

#include <algorithm>

namespace trivet::exercise {

Program one_f_one_b(int p, int m, int rank) {
  const int warm_up = std::min(p - 1 - rank, m);
  Program program;
  for (int i = 0; i < warm_up; ++i) program.push_back({OpKind::forward, i});
  for (int i = 0; i < m; ++i) {
    if (warm_up + i < m) program.push_back({OpKind::forward, warm_up + i});
    program.push_back({OpKind::backward, i});
  }
  return program;
}

}  // namespace trivet::exercise
