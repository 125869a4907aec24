// Positions in the mesh against the closed forms in its header. comm_group_cases.cc tests the groups on every back end.
#include "parallel/mesh.h"

#include <algorithm>
#include <array>
#include <gtest/gtest.h>
#include <set>

#include "parallel/comm/world.h"
#include "parallel/param.h"

namespace trivet {
namespace {

MeshShape shape_of(int t, int p, int d, const char* order = "tp-dp-pp") {
  return {{{Axis::tp, t}, {Axis::pp, p}, {Axis::dp, d}}, parse_axis_order(order).value()};
}
MeshPosition position(int tp, int pp, int dp) { return {{Axis::tp, tp}, {Axis::pp, pp}, {Axis::dp, dp}}; }

TEST(Mesh, positions_follow_the_order) {
  for (const auto& [t, p, d] : {std::array{2, 3, 4}, std::array{4, 1, 2}, std::array{1, 5, 1}, std::array{3, 2, 2}}) {
    for (const bool data_first : {true, false}) {
      const MeshShape shape = shape_of(t, p, d, data_first ? "tp-dp-pp" : "tp-pp-dp");
      std::set<int> ranks;
      for (int tp = 0; tp < t; ++tp)
        for (int pp = 0; pp < p; ++pp)
          for (int dp = 0; dp < d; ++dp) {
            const int expected = data_first ? tp + t * (dp + d * pp) : tp + t * (pp + p * dp);
            EXPECT_EQ(rank_of(position(tp, pp, dp), shape), expected);
            EXPECT_EQ(position_of(expected, shape), position(tp, pp, dp));
            ranks.insert(expected);
          }
      EXPECT_EQ(static_cast<int>(ranks.size()), shape.world());
      EXPECT_EQ(*ranks.rbegin(), shape.world() - 1);
    }
  }
}

// Megatron's documented example: 16 GPUs, t = 2, p = 4: data groups {0,2}, {1,3}, …; pipeline groups {0,4,8,12}, ….
TEST(Mesh, default_order_is_megatrons) {
  const MeshShape shape = shape_of(2, 4, 2);
  EXPECT_EQ(position_of(2, shape), position(0, 0, 1));
  EXPECT_EQ(position_of(4, shape), position(0, 1, 0));
  EXPECT_EQ(position_of(15, shape), position(1, 3, 1));
}

// In every order each rank has a distinct position, a group's members differ only in its axes, and each rank is in its
// own group, even along axes that no layer uses.
TEST(Mesh, groups_are_of_any_set_of_axes_in_any_order) {
  std::array names{"tp", "cp", "dp", "pp"};
  std::sort(names.begin(), names.end(), [](const char* a, const char* b) { return std::string(a) < b; });
  int orders = 0;
  do {
    std::string order;
    for (const char* name : names) order += (order.empty() ? "" : "-") + std::string(name);
    const MeshShape shape({{Axis::tp, 2}, {Axis::cp, 3}, {Axis::dp, 2}, {Axis::pp, 2}},
                          parse_axis_order(order).value());
    EXPECT_EQ(shape.world(), 24);
    for (const AxisSet axes : {AxisSet{Axis::cp}, AxisSet{Axis::pp}, kGradientAxes, kModelAxes, AxisSet{}}) {
      for (int rank = 0; rank < shape.world(); ++rank) {
        const MeshPosition at = position_of(rank, shape);
        ASSERT_EQ(rank_of(at, shape), rank);
        std::vector<int> expected;
        for (int other = 0; other < shape.world(); ++other) {
          const MeshPosition there = position_of(other, shape);
          if (std::all_of(kAxes.begin(), kAxes.end(),
                          [&](const AxisInfo& row) { return axes.has(row.axis) || there[row.axis] == at[row.axis]; }))
            expected.push_back(other);
        }
        ASSERT_EQ(group_members(at, shape, axes), expected) << order;
        ASSERT_EQ(expected.at(static_cast<size_t>(place_in_group(at, shape, axes))), rank) << order;
        ASSERT_EQ(static_cast<int>(expected.size()), shape.size(axes));
      }
    }
    ++orders;
  } while (std::next_permutation(names.begin(), names.end(),
                                 [](const char* a, const char* b) { return std::string(a) < b; }));
  EXPECT_EQ(orders, 24);
}

TEST(Mesh, order_names_each_axis_once) {
  EXPECT_EQ(parse_axis_order("tp-dp-pp"), (AxisOrder{Axis::tp, Axis::cp, Axis::dp, Axis::pp}));
  EXPECT_EQ(parse_axis_order("pp-dp-tp"), (AxisOrder{Axis::pp, Axis::dp, Axis::tp, Axis::cp}));
  EXPECT_EQ(parse_axis_order("pp-cp-tp-dp"), (AxisOrder{Axis::pp, Axis::cp, Axis::tp, Axis::dp}));
  for (const char* wrong : {"", "tp-dp", "tp-dp-pp-tp", "tp-dp-pp-", "tp-dp-xp", "tp dp pp"})
    EXPECT_FALSE(parse_axis_order(wrong)) << wrong;
  for (const char* order : {"tp-dp-pp", "pp-tp-dp", "pp-cp-tp-dp", "tp-dp-pp-cp"})
    EXPECT_EQ(to_text(parse_axis_order(order).value()), order);
  EXPECT_EQ(to_text(parse_axis_order("tp-cp-dp-pp").value()), "tp-dp-pp") << "cp is right behind tp";
  EXPECT_EQ(to_text(kUsualOrder, true), "tp-cp-dp-pp");
  EXPECT_EQ(kUsualOrder, parse_axis_order("tp-dp-pp"));
}

TEST(Mesh, has_to_fill_the_world) {
  EXPECT_THROW(run_thread_ranks(4, [](Communicator& world) { make_mesh(world, shape_of(3, 1, 1)); }), Error);
  EXPECT_THROW(position_of(8, shape_of(2, 2, 2)), Error);
}

// A parameter's placement on the axes determines the ranks to sum over, and which copy counts.
TEST(Params, FollowFromTheirStandings) {
  ParamList params({{Axis::tp, 2}, {Axis::cp, 2}, {Axis::dp, 2}, {Axis::pp, 2}}, {{Axis::tp, 1}, {Axis::cp, 1}});
  params.begin_unit(0);
  const Param& row = params.declare({.name = "row", .global_shape = {4, 6}, .placement = {{Axis::tp, partitioned(1)}}});
  EXPECT_EQ(row.shape, (Shape{4, 3}));
  EXPECT_EQ(row.partition_dim, 1);
  EXPECT_EQ(row.partition_offset, 3);
  EXPECT_EQ(row.summed_over, AxisSet{});
  EXPECT_TRUE(row.first_copy);
  const Param& replicated = params.declare({.name = "bias", .global_shape = {4}});
  EXPECT_EQ(replicated.summed_over, AxisSet{});
  EXPECT_FALSE(replicated.first_copy);
  const Param& partial = params.declare({.name = "norm", .global_shape = {4}, .placement = {{Axis::tp, kPartial}}});
  EXPECT_EQ(partial.summed_over, AxisSet{Axis::tp});
  const Param& tied = params.declare(
      {.name = "tied", .global_shape = {4, 6}, .placement = {{Axis::tp, partitioned(0)}, {Axis::pp, kPartial}}});
  EXPECT_EQ(tied.summed_over, AxisSet{Axis::pp});
  EXPECT_TRUE(tied.first_copy);  // at pp 0
  EXPECT_THROW(params.declare({.name = "x", .global_shape = {3, 2}, .placement = {{Axis::tp, partitioned(0)}}}),
               ConfigError);
  EXPECT_THROW(params.declare({.name = "x", .global_shape = {4}, .placement = {{Axis::dp, kReplicated}}}), Error);
}

}  // namespace
}  // namespace trivet
