// rank_map: chapter 10, 25 minutes
//
// t c d p ranks form a grid. Its axes are tensor, context, data and pipeline parallelism, from the innermost, whose
// ranks are consecutive, to the outermost (Megatron's order "tp-cp-dp-pp"), so the ranks that talk most share a node.
// Where is a rank, and with which ranks does it reduce gradients? Those differ from it only in data and context.
#pragma once

#include <vector>

namespace trivet::exercise {

struct Grid {  // the sizes of the axes, or a position on them
  int tensor, context, data, pipeline;
  bool operator==(const Grid&) const = default;
};

Grid position_of(int rank, const Grid& sizes);
int rank_of(const Grid& position, const Grid& sizes);
std::vector<int> gradient_group(int rank, const Grid& sizes);  // ascending, the rank itself included

}  // namespace trivet::exercise

// Hints
//   1. Consecutive ranks are tensor-parallel peers: tensor = rank % t. What is left is rank / t.
//   2. rank = tensor + t (context + c (data + d pipeline)).
//   3. The group: keep tensor and pipeline, and let data run in an outer and context in an inner loop.
// In the engine: parallel/mesh_shape.cc:position_of, parallel/mesh_shape.cc:group_members, for any order of the axes.
