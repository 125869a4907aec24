// gradient_norm: chapter 10, 25 minutes
//
// Gradients are clipped by the norm of the whole model's gradient: sqrt(sum of all squares). Most weights are cut into
// t parts, one for each tensor-parallel rank. The others, norms and some biases, are whole on every rank, with the same
// gradient. Compute the norm on every rank: the one that a single rank would compute.
#pragma once

#include <span>

#include "docs/course/exercises/support/ranks.h"

namespace trivet::exercise {

struct WeightGradient {
  std::span<const float> values;
  bool whole;  // on every rank; otherwise this rank's part
};

float gradient_norm(Communicator& tensor, std::span<const WeightGradient> gradients, Stream& stream);

}  // namespace trivet::exercise

// Hints
//   1. Squares can be summed over ranks; norms cannot.
//   2. A sum over ranks counts the squares of a whole gradient t times, unless only one rank adds them.
//   3. The root comes after the all-reduce.
// In the engine: parallel/data/optimizer.cc, which counts only the first copy (parallel/param.h:first_copy). Its sums
// of squares are exact (kernels/exact_sum.h), so that the layout changes no bit of the norm.
