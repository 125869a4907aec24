#include "docs/course/exercises/zero_partition.h"

#include "docs/course/exercises/support/testing.h"

namespace trivet::exercise {
namespace {

TEST(zero_partition, gives_every_element_one_owner) {
  const std::vector<Placed> params{{0, 100}, {128, 500}, {640, 64}, {704, 1}, {768, 130}};
  for (const int ranks : {1, 2, 3, 4}) {
    const int64_t length = 1152, own = length / ranks;
    std::vector<std::vector<int>> owners(params.size()), expected(params.size());  // of each element; -1: none
    for (size_t i = 0; i < params.size(); ++i) {
      owners[i].assign(static_cast<size_t>(params[i].length), -1);
      for (int64_t j = 0; j < params[i].length; ++j)
        expected[i].push_back(static_cast<int>((params[i].offset + j) / own));
    }
    for (int rank = 0; rank < ranks; ++rank)
      for (const Shard& shard : zero_partition(params, length, ranks, rank)) {
        ASSERT_LT(shard.param, params.size());
        ASSERT_GT(shard.count, 0) << "an empty shard of parameter " << shard.param << " on rank " << rank;
        ASSERT_TRUE(shard.first >= 0 && shard.first + shard.count <= params[shard.param].length)
            << "rank " << rank << " of " << ranks << " has a shard beyond parameter " << shard.param;
        for (int64_t i = 0; i < shard.count; ++i) owners[shard.param][static_cast<size_t>(shard.first + i)] = rank;
      }
    for (size_t i = 0; i < params.size(); ++i)
      expect_near(owners[i], expected[i], 0,
                  "owners among " + std::to_string(ranks) + " ranks (-1: none) of parameter " + std::to_string(i));
  }
}

}  // namespace
}  // namespace trivet::exercise
