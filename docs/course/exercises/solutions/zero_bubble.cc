#include "docs/course/exercises/zero_bubble.h"

#include <algorithm>

namespace trivet::exercise {

Program zero_bubble(int p, int m, int rank) {
  const int warm_up = std::min(p - 1 - rank, m);
  Program program;
  int weight_halves = 0;
  for (int i = 0; i < warm_up; ++i) program.push_back({OpKind::forward, i});
  for (int i = 0; i < m; ++i) {
    if (warm_up + i < m) program.push_back({OpKind::forward, warm_up + i});
    program.push_back({OpKind::backward_input, i});
    if (i + 1 - weight_halves > rank) program.push_back({OpKind::backward_weight, weight_halves++});
  }
  while (weight_halves < m) program.push_back({OpKind::backward_weight, weight_halves++});
  return program;
}

}  // namespace trivet::exercise
