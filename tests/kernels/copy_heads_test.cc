// Copies heads between views: each element reaches its place, converted or added, and nothing outside the view changes.
#include "tests/support/ops_fixture.h"

namespace trivet::test {
namespace {

using CopyHeadsTest = OpsTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, CopyHeadsTest, all_types_and_back_ends(), case_name);

TEST_P(CopyHeadsTest, ElementsComeToTheirPlaces) {
  for (const DType other : {DType::f32, DType::bf16})
    for (const bool accumulate : {false, true})
      for (const auto& [s, b, heads, groups, d] :
           {std::array<int64_t, 5>{1, 1, 1, 1, 1}, {5, 2, 4, 2, 8}, {3, 3, 6, 1, 10}, {70, 2, 8, 4, 64}}) {
        // given: keys in Megatron's order, and memory with each group's keys and values side by side
        const HeadsView from = qkv_views(tensors.uniform(dtype, {s, b, (heads + 2 * groups) * d}), heads, groups).k;
        const Tensor memory = tensors.full(other, {s, b, groups * 2 * d}, 7);
        const HeadsView to{memory, d, HeadsLayout::in_groups(s, b, groups, 1, d, 2 * d)};
        // when
        ops->run(op::CopyHeads{from, to, accumulate}, *stream);
        // then
        Values expected(static_cast<size_t>(memory.numel()), 7);
        for (int64_t p = 0; p < s; ++p)
          for (int64_t e = 0; e < b; ++e)
            for (int64_t g = 0; g < groups; ++g)
              for (int64_t c = 0; c < d; ++c) {
                double& x = expected[static_cast<size_t>(((p * b + e) * groups + g) * 2 * d + d + c)];
                x = (accumulate ? 7 : 0) + get(from.memory, from.first + from.layout.at(p, e, g) + c);
                const auto rounded = static_cast<float>(x);
                x = other == DType::bf16 ? static_cast<float>(bf16(rounded)) : rounded;
              }
        EXPECT_EQ(values(memory), expected);
      }
}

TEST_P(CopyHeadsTest, OtherSizesAreNamed) {
  const HeadsView x = heads_view(tensors.uniform(dtype, {4, 2, 12}), 3, 3);
  const HeadsView other = heads_view(tensors.uniform(dtype, {4, 2, 12}), 2, 2);
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(op::CopyHeads{x, other}, *stream);
      },
      {"copy_heads", " to ", "[4, 2, 2, 6]", "[4, 2, 3, 4]"}));
}

}  // namespace
}  // namespace trivet::test
