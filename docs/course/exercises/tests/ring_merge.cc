#include "docs/course/exercises/ring_merge.h"

#include "docs/course/exercises/support/testing.h"

namespace trivet::exercise {
namespace {

// Over keys [begin, end), in double.
Hop attention_over(const std::vector<float>& scores, const std::vector<float>& values, size_t begin, size_t end,
                   size_t d) {
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  for (size_t k = begin; k < end; ++k) max = std::max<double>(max, scores[k]);
  std::vector<double> out(d);
  for (size_t k = begin; k < end && !std::isinf(max); ++k) sum += std::exp(scores[k] - max);
  for (size_t k = begin; k < end && sum > 0; ++k)
    for (size_t i = 0; i < d; ++i) out[i] += std::exp(scores[k] - max) / sum * values[k * d + i];
  return {std::vector<float>(out.begin(), out.end()), static_cast<float>(max + std::log(sum))};
}

TEST(ring_merge, equals_attention_over_all_keys) {
  const size_t keys = 20, d = 5;
  for (const float scale : {1.0f, 300.0f}) {
    std::vector<float> scores = numbers(keys, 1);
    for (float& x : scores) x *= scale;
    for (size_t k = 0; k < 5; ++k) scores[k] = -std::numeric_limits<float>::infinity();  // the first hop is masked
    const std::vector<float> values = numbers(keys * d, 2);
    Hop total{.out = std::vector<float>(d)};
    for (size_t hop = 0; hop < 4; ++hop) {
      ring_merge(total, attention_over(scores, values, 5 * hop, 5 * hop + 5, d));
      const Hop expected = attention_over(scores, values, 0, 5 * hop + 5, d);
      const std::string what =
          "after hop " + std::to_string(hop) + ", scores up to " + std::to_string(static_cast<int>(scale));
      expect_near(total.out, expected.out, 1e-4, what);
      if (hop > 0) {
        EXPECT_NEAR(total.lse, expected.lse, 1e-3) << what << ": lse";
      }
    }
  }
}

}  // namespace
}  // namespace trivet::exercise
