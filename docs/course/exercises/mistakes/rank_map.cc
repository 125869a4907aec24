// The mistake: the pipeline is inside data parallelism ("tp-cp-pp-dp"). With equal d and p every rank has a place, but
// it talks to ranks other than those that its checkpoint, its launcher and its network expect.
#include "docs/course/exercises/rank_map.h"

namespace trivet::exercise {

Grid position_of(int rank, const Grid& sizes) {
  const int above_tensor = rank / sizes.tensor, above_context = above_tensor / sizes.context;
  return {rank % sizes.tensor, above_tensor % sizes.context, above_context / sizes.pipeline,
          above_context % sizes.pipeline};
}

int rank_of(const Grid& position, const Grid& sizes) {
  return position.tensor +
         sizes.tensor * (position.context + sizes.context * (position.pipeline + sizes.pipeline * position.data));
}

std::vector<int> gradient_group(int rank, const Grid& sizes) {
  Grid at = position_of(rank, sizes);
  std::vector<int> group;
  for (at.data = 0; at.data < sizes.data; ++at.data)
    for (at.context = 0; at.context < sizes.context; ++at.context) group.push_back(rank_of(at, sizes));
  return group;
}

}  // namespace trivet::exercise
