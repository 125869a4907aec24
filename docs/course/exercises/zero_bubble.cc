#include "docs/course/exercises/zero_bubble.h"

namespace trivet::exercise {

Program zero_bubble(int p, int m, int rank) {
  Program program;
  // Your code.
  return program;
}

}  // namespace trivet::exercise
