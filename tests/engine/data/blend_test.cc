#include "engine/data/blend.h"

#include <array>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <set>

#include "engine/config/blend_text.h"
#include "tests/support/training.h"

namespace trivet {
namespace {

constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();

// Megatron's build_blending_indices, for normalised weights.
std::vector<std::pair<size_t, int64_t>> megatron(const std::vector<double>& weights, int64_t size) {
  std::vector<std::pair<size_t, int64_t>> places;
  std::vector<int64_t> taken(weights.size());
  for (int64_t i = 0; i < size; ++i) {
    size_t best = 0;
    const auto error = [&](size_t k) {
      return weights[k] * std::max(static_cast<double>(i), 1.0) - static_cast<double>(taken[k]);
    };
    for (size_t k = 1; k < weights.size(); ++k)
      if (error(k) > error(best)) best = k;
    places.emplace_back(best, taken[best]++);
  }
  return places;
}

TEST(Blend, IsMegatronsAtAnyIndex) {
  constexpr int64_t kSize = 300'000;  // several anchors
  for (const std::vector<double>& weights :
       {std::vector<double>{0.3, 0.7}, {0.5, 0.25, 0.125, 0.125}, {0.0001, 0.9999}, {1.0}}) {
    const auto expected = megatron(weights, kSize);
    Blend blend(weights, std::vector<int64_t>(weights.size(), kNoEnd));
    const auto check = [&](int64_t i) {
      const Blend::Place place = blend.at(i);
      ASSERT_EQ(std::pair(place.source, place.sample), expected[static_cast<size_t>(i)]) << i;
    };
    for (int64_t i = 0; i < kSize; i += i < 1000 ? 1 : 7) check(i);
    std::mt19937_64 random(7);
    for (int k = 0; k < 50; ++k) check(static_cast<int64_t>(random() % kSize));
    Blend resumed(weights, std::vector<int64_t>(weights.size(), kNoEnd));
    const Blend::Place last = resumed.at(kSize - 1);  // without the places before it
    EXPECT_EQ(std::pair(last.source, last.sample), expected.back());
    const std::vector<double> counts = blend.expected(kSize);
    for (size_t k = 0; k < weights.size(); ++k) EXPECT_NEAR(counts[k], weights[k] * kSize, 1e-6);
  }
}

// A count kept in fp32 stops growing at 2^24.
TEST(Blend, IsMegatronsBehindMillionsOfSamplesOfOneSource) {
  if (test::kMatrixStride > 1) GTEST_SKIP() << "twenty million steps: a sanitizer sees the same code in the other cases";
  const std::vector<double> weights = {0.97, 0.03};
  constexpr int64_t kSize = (int64_t{1} << 24) + (int64_t{1} << 20);  // over 2^24 from the first source
  Blend blend(weights, {kNoEnd, kNoEnd});
  std::array<int64_t, 2> taken{};
  for (int64_t i = 0; i < kSize; ++i) {
    const double share = std::max(static_cast<double>(i), 1.0);
    const size_t source =
        weights[1] * share - static_cast<double>(taken[1]) > weights[0] * share - static_cast<double>(taken[0]);
    const Blend::Place place = blend.at(i);
    ASSERT_EQ(place.source, source) << i;
    ASSERT_EQ(place.sample, taken[source]++) << i;
  }
  ASSERT_GT(taken[0], int64_t{1} << 24);
}

TEST(Blend, LeavesOutWhatHasEndedAndKeepsTheOthersInProportion) {
  const std::vector<int64_t> sizes = {1000, 9000, 4000};
  Blend blend({1, 1, 2}, sizes);
  std::set<std::pair<size_t, int64_t>> seen;
  std::vector<int64_t> taken(3);
  for (int64_t i = 0; i < 14'000; ++i) {
    const auto [source, sample] = blend.at(i);
    ASSERT_LT(source, 3u) << i;
    ASSERT_EQ(sample, taken[source]++) << i;
    ASSERT_TRUE(seen.emplace(source, sample).second);
    if (i + 1 != 3000 && i + 1 != 5500 && i + 1 != 9000) continue;
    const std::vector<double> expected = blend.expected(static_cast<double>(i + 1));
    for (size_t k = 0; k < 3; ++k) EXPECT_NEAR(static_cast<double>(taken[k]), expected[k], 2) << i;
  }
  EXPECT_EQ(taken, sizes);
  EXPECT_EQ(blend.at(14'000).source, 3u) << "none is left";
  EXPECT_EQ(blend.at(5500).source, Blend({1, 1, 2}, sizes).at(5500).source);
  EXPECT_EQ(blend.expected(5500), (std::vector<double>{1000, 1500, 3000}));
}

TEST(Blend, IsReadAsMegatronsDataPath) {
  const auto sources = [](const char* text) {
    const BlendText blend = parse_blend(text);
    EXPECT_EQ(blend.problem, "") << text;
    std::string found;
    for (const auto& [weight, prefix] : blend.sources) found += prefix + "=" + std::to_string(weight) + " ";
    return found;
  };
  EXPECT_EQ(sources(""), "");
  EXPECT_EQ(sources("data/a"), "data/a=0.000000 ");
  EXPECT_EQ(sources("2024"), "2024=0.000000 ");
  EXPECT_EQ(sources("0.3,data/a, 7e-1 , b"), "data/a=0.300000 b=0.700000 ");
  EXPECT_EQ(sources("a,b,c"), "a=0.000000 b=0.000000 c=0.000000 ");
  EXPECT_EQ(first_prefix("0.3,a,0.7,b"), "a");
  for (const auto& [text, problem] :
       std::vector<std::pair<const char*, const char*>>{{"0.3,a,b", "\"b\" has no weight before it"},
                                                        {"a,0.3,b,0.7", "\"a\" has no weight before it"},
                                                        {"0.3,a,0,b", "the weight 0 is not above 0"},
                                                        {"-0.3,a,1,b", "the weight -0.3 is not above 0"},
                                                        {"0.3,a,0.7", "the weight 0.7 is not followed by a prefix"},
                                                        {"0.3,0.7,a,b", "the weight 0.3 is not followed by a prefix"},
                                                        {"nan,a,1,b", "\"nan\" has no weight before it"},
                                                        {"a,,b", "a prefix is empty"}})
    EXPECT_EQ(parse_blend(text).problem, problem) << text;
}

}  // namespace
}  // namespace trivet
