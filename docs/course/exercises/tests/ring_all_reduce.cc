#include "docs/course/exercises/ring_all_reduce.h"

#include "docs/course/exercises/support/testing.h"

namespace trivet::exercise {
namespace {

TEST(ring_all_reduce, gives_every_rank_the_sums) {
  for (const int p : {2, 3, 5})
    for (const int64_t n : {30, 31, 17}) {
      std::vector<float> expected;
      for (int64_t i = 0; i < n; ++i) expected.push_back(rank_order_sum<float>(p, i, small_integer<float>));
      on_ranks(p, [&](Communicator& group, Stream& stream) {
        Ring ring{group, stream};
        std::vector<float> x = filled<float>(n, group.rank(), small_integer<float>);
        ring_all_reduce(ring, x);
        const std::string where = "rank " + std::to_string(group.rank()) + " of " + std::to_string(p);
        expect_near(x, expected, 0, where);
        const auto steps = static_cast<size_t>(2 * (p - 1)), longest = static_cast<size_t>((n + p - 1) / p);
        if (ring.sent > steps * longest)
          expect_no(fmt::format("{} sends {} numbers: more than 2 (p - 1) chunks of {} / p", where, ring.sent, n));
      });
    }
}

}  // namespace
}  // namespace trivet::exercise
