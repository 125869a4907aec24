// vocab_loss: chapter 6, 45 minutes
//
// The cross-entropy of a token is log(sum over the vocabulary of exp(logit)) - logit of the target. The columns of the
// logits are shared by t ranks, and are too large to be gathered: n tokens times the vocabulary. Find the losses with
// three reductions of n numbers. Logits can be 1000, so exp must get only differences from the row's largest logit.
#pragma once

#include <span>
#include <vector>

#include "docs/course/exercises/support/matrix.h"
#include "docs/course/exercises/support/ranks.h"

namespace trivet::exercise {

// logits: [n, vocab / t], the columns from first_column on; targets: [n] in the whole vocabulary. Returns the n losses.
std::vector<float> vocab_loss(Communicator& tensor, const Matrix& logits, std::span<const int> targets,
                              int first_column, Stream& stream);

}  // namespace trivet::exercise

// Hints
//   1. The three are: the maximum of a row (Reduce::max), the sum of its exponentials, and the target's logit.
//   2. Exponentials can be summed over ranks only if all have subtracted the same number. So the maximum comes first.
//   3. Only one rank has a target's column. The others contribute 0 to the sum, which is then that logit.
// In the engine: parallel/tensor/cross_entropy.cc:VocabParallelCrossEntropy::forward. One all-reduce for both sums.
