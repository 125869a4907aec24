#include "docs/course/exercises/rank_map.h"

#include "docs/course/exercises/support/testing.h"
#include "parallel/mesh_shape.h"

namespace trivet::exercise {

void PrintTo(const Grid& at, std::ostream* out) {  // in the messages of gtest
  *out << "tensor " << at.tensor << ", context " << at.context << ", data " << at.data << ", pipeline " << at.pipeline;
}

namespace {

TEST(rank_map, is_the_engines) {
  for (const Grid& sizes : {Grid{2, 1, 2, 2}, Grid{2, 3, 2, 4}, Grid{1, 2, 5, 1}, Grid{4, 1, 1, 3}}) {
    const MeshShape mesh(
        {{Axis::tp, sizes.tensor}, {Axis::cp, sizes.context}, {Axis::dp, sizes.data}, {Axis::pp, sizes.pipeline}});
    for (int rank = 0; rank < mesh.world(); ++rank) {
      const MeshPosition at = trivet::position_of(rank, mesh);
      const Grid expected{at[Axis::tp], at[Axis::cp], at[Axis::dp], at[Axis::pp]};
      const std::string what = "rank " + std::to_string(rank) + " of " + testing::PrintToString(sizes);
      ASSERT_EQ(position_of(rank, sizes), expected) << "the position of " << what;
      ASSERT_EQ(rank_of(expected, sizes), rank) << "the rank at the position of " << what;
      ASSERT_EQ(gradient_group(rank, sizes), group_members(at, mesh, kGradientAxes))
          << "the gradient group of " << what;
    }
  }
}

}  // namespace
}  // namespace trivet::exercise
