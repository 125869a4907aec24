#include "docs/course/exercises/rank_map.h"

namespace trivet::exercise {

Grid position_of(int rank, const Grid& sizes) {
  // Your code.
  return {-1, -1, -1, -1};
}

int rank_of(const Grid& position, const Grid& sizes) {
  // Your code.
  return -1;
}

std::vector<int> gradient_group(int rank, const Grid& sizes) {
  // Your code.
  return {};
}

}  // namespace trivet::exercise
