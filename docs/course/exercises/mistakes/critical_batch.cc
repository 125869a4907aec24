// The mistake: an ordinary regression. It is right where the measurements are exact. Otherwise the errors of the small
// batches, whose runs have the most steps, outweigh the large batches, which alone determine least_steps.
#include "docs/course/exercises/critical_batch.h"

namespace trivet::exercise {

BatchLaw critical_batch(const std::vector<BatchRun>& runs) {
  double n = 0, x_sum = 0, xx = 0, y_sum = 0, xy = 0;
  for (const auto& [batch, steps] : runs) {
    const double x = 1 / batch;
    n += 1, x_sum += x, xx += x * x;
    y_sum += steps, xy += x * steps;
  }
  const double b = (n * xy - x_sum * y_sum) / (n * xx - x_sum * x_sum), a = (y_sum - b * x_sum) / n;
  return {a, b / a};
}

}  // namespace trivet::exercise
