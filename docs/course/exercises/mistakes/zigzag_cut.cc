// The mistake: pieces r and r + c, as one deals cards. Better than a plain cut, but the last rank still has more to do.
#include "docs/course/exercises/zigzag_cut.h"

namespace trivet::exercise {

std::vector<int64_t> zigzag_positions(int64_t s, int ranks, int rank) {
  const int64_t piece = s / (2 * ranks);
  std::vector<int64_t> positions;
  for (const int number : {rank, ranks + rank})
    for (int64_t i = 0; i < piece; ++i) positions.push_back(number * piece + i);
  return positions;
}

}  // namespace trivet::exercise
