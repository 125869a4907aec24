#include "docs/course/exercises/attention_backward.h"

#include <cmath>

namespace trivet::exercise {

void attention_backward(const Head& head, const Rows& probabilities, const Rows& dout, Head& gradient) {
  const size_t s = head.q.size(), d = head.q[0].size();
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  for (size_t i = 0; i < s; ++i) {
    const std::vector<double>& p = probabilities[i];
    std::vector<double> dp(i + 1);
    double mean = 0;  // sum of P dP
    for (size_t j = 0; j <= i; ++j) {
      for (size_t c = 0; c < d; ++c) {
        gradient.v[j][c] += p[j] * dout[i][c];
        dp[j] += dout[i][c] * head.v[j][c];
      }
      mean += p[j] * dp[j];
    }
    for (size_t j = 0; j <= i; ++j) {
      const double dscore = p[j] * (dp[j] - mean) * scale;
      for (size_t c = 0; c < d; ++c) {
        gradient.q[i][c] += dscore * head.k[j][c];
        gradient.k[j][c] += dscore * head.q[i][c];
      }
    }
  }
}

}  // namespace trivet::exercise
