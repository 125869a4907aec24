#include "docs/course/exercises/vocab_loss.h"

namespace trivet::exercise {

std::vector<float> vocab_loss(Communicator& tensor, const Matrix& logits, std::span<const int> targets,
                              int first_column, Stream& stream) {
  std::vector<float> losses(targets.size());
  // Your code.
  return losses;
}

}  // namespace trivet::exercise
