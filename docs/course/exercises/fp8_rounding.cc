#include "docs/course/exercises/fp8_rounding.h"

namespace trivet::exercise {

float round_to_e4m3(float x) {
  // Your code.
  return x;
}

}  // namespace trivet::exercise
