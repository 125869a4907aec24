#include "docs/course/exercises/ring_merge.h"

namespace trivet::exercise {

void ring_merge(Hop& total, const Hop& hop) {
  // Your code.
}

}  // namespace trivet::exercise
