#include "docs/course/exercises/zigzag_cut.h"

namespace trivet::exercise {

std::vector<int64_t> zigzag_positions(int64_t s, int ranks, int rank) {
  const int64_t piece = s / (2 * ranks);
  std::vector<int64_t> positions;
  for (const int number : {rank, 2 * ranks - 1 - rank})
    for (int64_t i = 0; i < piece; ++i) positions.push_back(number * piece + i);
  return positions;
}

}  // namespace trivet::exercise
