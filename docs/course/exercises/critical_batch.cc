#include "docs/course/exercises/critical_batch.h"

namespace trivet::exercise {

BatchLaw critical_batch(const std::vector<BatchRun>& runs) {
  // Your code.
  return {1, 1};
}

}  // namespace trivet::exercise
