// Positions in the mesh against the closed forms in its header. The groups themselves are a case of every back end.
#include "parallel/mesh.h"

#include <gtest/gtest.h>
#include <set>

#include "parallel/comm/world.h"

namespace trivet {
namespace {

TEST(Mesh, positions_follow_the_order) {
  for (const MeshShape shape : {MeshShape{2, 3, 4}, MeshShape{4, 1, 2}, MeshShape{1, 5, 1}, MeshShape{3, 2, 2}}) {
    for (const RankOrder order : {RankOrder::tp_dp_pp, RankOrder::tp_pp_dp}) {
      MeshShape ordered = shape;
      ordered.order = order;
      std::set<int> ranks;
      for (int tp = 0; tp < shape.t; ++tp)
        for (int pp = 0; pp < shape.p; ++pp)
          for (int dp = 0; dp < shape.d; ++dp) {
            const int expected =
                order == RankOrder::tp_dp_pp ? tp + shape.t * (dp + shape.d * pp) : tp + shape.t * (pp + shape.p * dp);
            EXPECT_EQ(rank_of({tp, pp, dp}, ordered), expected);
            EXPECT_EQ(position_of(expected, ordered), (MeshPosition{tp, pp, dp}));
            ranks.insert(expected);
          }
      EXPECT_EQ(static_cast<int>(ranks.size()), shape.world());
      EXPECT_EQ(*ranks.rbegin(), shape.world() - 1);
    }
  }
}

// Megatron's documented example: 16 GPUs, t = 2, p = 4: data groups {0,2}, {1,3}, …; pipeline groups {0,4,8,12}, ….
TEST(Mesh, default_order_is_megatrons) {
  const MeshShape shape{.t = 2, .p = 4, .d = 2};
  EXPECT_EQ(position_of(2, shape), (MeshPosition{.tp = 0, .pp = 0, .dp = 1}));
  EXPECT_EQ(position_of(4, shape), (MeshPosition{.tp = 0, .pp = 1, .dp = 0}));
  EXPECT_EQ(position_of(15, shape), (MeshPosition{.tp = 1, .pp = 3, .dp = 1}));
}

TEST(Mesh, has_to_fill_the_world) {
  EXPECT_THROW(run_thread_ranks(4, [](Communicator& world) { make_mesh(world, {.t = 3, .p = 1, .d = 1}); }), Error);
  EXPECT_THROW(position_of(8, {.t = 2, .p = 2, .d = 2}), Error);
}

}  // namespace
}  // namespace trivet
