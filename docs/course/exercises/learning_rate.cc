#include "docs/course/exercises/learning_rate.h"

namespace trivet::exercise {

double learning_rate(const RateSchedule& schedule, int64_t step) {
  // Your code.
  return 0;
}

}  // namespace trivet::exercise
