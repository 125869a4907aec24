#include "docs/course/exercises/online_softmax.h"

#include "docs/course/exercises/support/testing.h"

namespace trivet::exercise {
namespace {

// The attention over all keys, in double.
std::vector<double> whole_softmax(const std::vector<float>& scores, const std::vector<float>& values, size_t d) {
  const double max = *std::ranges::max_element(scores);
  double sum = 0;
  std::vector<double> out(d);
  for (const float score : scores) sum += std::exp(score - max);
  for (size_t i = 0; i < values.size(); ++i) out[i % d] += std::exp(scores[i / d] - max) / sum * values[i];
  return out;
}

void expect_attention(const std::vector<float>& scores, size_t block, const std::string& what) {
  const size_t d = 5;
  const std::vector<float> values = numbers(static_cast<int64_t>(scores.size() * d), 1);
  OnlineSoftmax state{.weighted = std::vector<float>(d)};
  for (size_t key = 0; key < scores.size(); key += block) {
    const size_t count = std::min(block, scores.size() - key);
    add_block(state, std::span(scores).subspan(key, count), std::span(values).subspan(key * d, count * d));
  }
  expect_near(std::vector{state.max}, std::vector{*std::ranges::max_element(scores)}, 0, what + ": the maximum");
  for (float& x : state.weighted) x /= state.sum;
  expect_near(state.weighted, whole_softmax(scores, values, d), 1e-5, what);
}

TEST(online_softmax, equals_the_softmax_of_all_scores) {
  std::vector<float> scores = numbers(23, 2);
  for (const size_t block : {23, 7, 4, 1}) expect_attention(scores, block, "blocks of " + std::to_string(block));
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = 90 * scores[i] + 10 * static_cast<float>(i);
  expect_attention(scores, 4, "scores that grow up to 300, whose exp is no float");
}

TEST(online_softmax, does_not_mind_keys_that_are_masked) {
  std::vector<float> scores = numbers(13, 3);
  for (const size_t masked : {0, 1, 2, 3, 4, 7}) scores[masked] = -std::numeric_limits<float>::infinity();
  expect_attention(scores, 4, "a first block of -inf");
}

}  // namespace
}  // namespace trivet::exercise
