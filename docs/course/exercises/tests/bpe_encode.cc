#include "docs/course/exercises/bpe_encode.h"

#include "docs/course/exercises/support/testing.h"

namespace trivet::exercise {
namespace {

const Merges kMerges{{{'b', 'c'}, 256}, {{'a', 'b'}, 257}, {{'a', 'a'}, 258}, {{258, 256}, 259}, {{256, 256}, 260}};

TEST(bpe_encode, merges_the_pair_that_was_learned_first) {
  EXPECT_EQ(bpe_encode({'a', 'b', 'c'}, kMerges), (std::vector<int>{'a', 256})) << "(b, c) was learned before (a, b)";
  EXPECT_EQ(bpe_encode({'a', 'a', 'b', 'c'}, kMerges), (std::vector<int>{259}))
      << "three merges, one on top of another";
}

TEST(bpe_encode, uses_no_token_twice) {
  EXPECT_EQ(bpe_encode({'a', 'a', 'a'}, kMerges), (std::vector<int>{258, 'a'}));
  EXPECT_EQ(bpe_encode({'x'}, kMerges), (std::vector<int>{'x'}));
  EXPECT_EQ(bpe_encode({}, kMerges), (std::vector<int>{}));
}

// A merge makes no pair that was learned before it, so one pass over the word per merge, in the order of learning, has
// the same result, but takes far longer.
TEST(bpe_encode, equals_one_pass_per_merge) {
  for (uint64_t word = 0; word < 300; ++word) {
    std::vector<int> tokens, expected;
    for (uint64_t i = 0; i < 1 + word % 13; ++i) tokens.push_back('a' + static_cast<int>(mixed(100 * word + i) % 3));
    expected = tokens;
    for (int learned = 256; learned <= 260; ++learned)
      for (size_t i = 0; i + 1 < expected.size(); ++i) {
        const auto found = kMerges.find({expected[i], expected[i + 1]});
        if (found == kMerges.end() || found->second != learned) continue;
        expected[i] = learned;
        expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    ASSERT_EQ(bpe_encode(tokens, kMerges), expected) << "of the word " << std::string(tokens.begin(), tokens.end());
  }
}

}  // namespace
}  // namespace trivet::exercise
