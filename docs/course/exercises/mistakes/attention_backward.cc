// The mistake: the softmax is differentiated element by element, as if a probability depended only on its own score.
#include "docs/course/exercises/attention_backward.h"

#include <cmath>

namespace trivet::exercise {

void attention_backward(const Head& head, const Rows& probabilities, const Rows& dout, Head& gradient) {
  const size_t s = head.q.size(), d = head.q[0].size();
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  for (size_t i = 0; i < s; ++i)
    for (size_t j = 0; j <= i; ++j) {
      const double p = probabilities[i][j];
      double dp = 0;
      for (size_t c = 0; c < d; ++c) {
        gradient.v[j][c] += p * dout[i][c];
        dp += dout[i][c] * head.v[j][c];
      }
      const double dscore = p * (1 - p) * dp * scale;
      for (size_t c = 0; c < d; ++c) {
        gradient.q[i][c] += dscore * head.k[j][c];
        gradient.k[j][c] += dscore * head.q[i][c];
      }
    }
}

}  // namespace trivet::exercise
