#include "docs/course/exercises/attention_backward.h"

#include "docs/course/exercises/support/testing.h"

namespace trivet::exercise {

Attention attention(const Head& head) {
  const size_t s = head.q.size(), d = head.q[0].size();
  Attention a{Rows(s, std::vector<double>(s)), Rows(s, std::vector<double>(d))};
  for (size_t i = 0; i < s; ++i) {
    double sum = 0;
    for (size_t j = 0; j <= i; ++j) {
      double score = 0;
      for (size_t c = 0; c < d; ++c) score += head.q[i][c] * head.k[j][c] / std::sqrt(static_cast<double>(d));
      sum += a.probabilities[i][j] = std::exp(score);
    }
    for (size_t j = 0; j <= i; ++j) {
      a.probabilities[i][j] /= sum;
      for (size_t c = 0; c < d; ++c) a.out[i][c] += a.probabilities[i][j] * head.v[j][c];
    }
  }
  return a;
}

namespace {

Rows rows(size_t s, size_t d, uint64_t seed) {
  Rows x(s, std::vector<double>(d));
  const std::vector<float> from = numbers(static_cast<int64_t>(s * d), seed);
  for (size_t i = 0; i < s * d; ++i) x[i / d][i % d] = 2 * from[i];
  return x;
}

TEST(attention_backward, equals_the_slope_of_the_loss) {
  const size_t s = 5, d = 3;
  const Head head{rows(s, d, 1), rows(s, d, 2), rows(s, d, 3)};
  const Rows dout = rows(s, d, 4);  // the gradient of the loss, which is the sum of dout * out
  const auto loss = [&](const Head& at) {
    double sum = 0;
    const Rows out = attention(at).out;
    for (size_t i = 0; i < s; ++i)
      for (size_t c = 0; c < d; ++c) sum += dout[i][c] * out[i][c];
    return sum;
  };
  const Rows zeros(s, std::vector<double>(d));
  Head gradient{zeros, zeros, zeros};
  attention_backward(head, attention(head).probabilities, dout, gradient);
  for (const auto& [name, which] : {std::pair("dv", &Head::v), std::pair("dq", &Head::q), std::pair("dk", &Head::k)})
    for (size_t i = 0; i < s; ++i) {
      std::vector<double> slope;
      for (size_t c = 0; c < d; ++c) {
        Head above = head, below = head;
        (above.*which)[i][c] += 1e-5;
        (below.*which)[i][c] -= 1e-5;
        slope.push_back((loss(above) - loss(below)) / 2e-5);
      }
      expect_near((gradient.*which)[i], slope, 1e-7, std::string(name) + " of position " + std::to_string(i));
    }
}

}  // namespace
}  // namespace trivet::exercise
