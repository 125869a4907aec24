#include "docs/course/exercises/vocab_loss.h"

#include <algorithm>
#include <cmath>

namespace trivet::exercise {

std::vector<float> vocab_loss(Communicator& tensor, const Matrix& logits, std::span<const int> targets,
                              int first_column, Stream& stream) {
  const size_t n = targets.size();
  std::vector<float> max(n), sum(n), target(n), losses(n);
  for (size_t i = 0; i < n; ++i) {
    const auto row =
        std::span(logits.values).subspan(i * static_cast<size_t>(logits.cols), static_cast<size_t>(logits.cols));
    max[i] = *std::ranges::max_element(row);
  }
  tensor.all_reduce(tensor_of(max), Reduce::max, stream);
  for (size_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < logits.cols; ++j) {
      const float above = logits(static_cast<int64_t>(i), j) - max[i];
      sum[i] += std::exp(above);
      if (first_column + j == targets[i]) target[i] = above;
    }
  tensor.all_reduce(tensor_of(sum), Reduce::sum, stream);
  tensor.all_reduce(tensor_of(target), Reduce::sum, stream);
  for (size_t i = 0; i < n; ++i) losses[i] = std::log(sum[i]) - target[i];
  return losses;
}

}  // namespace trivet::exercise
