#include "docs/course/exercises/attention_backward.h"

namespace trivet::exercise {

void attention_backward(const Head& head, const Rows& probabilities, const Rows& dout, Head& gradient) {
  // Your code.
}

}  // namespace trivet::exercise
