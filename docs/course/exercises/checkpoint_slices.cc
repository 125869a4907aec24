#include "docs/course/exercises/checkpoint_slices.h"

namespace trivet::exercise {

void copy_overlap(const Box& from, std::span<const float> saved, const Box& to, std::span<float> wanted) {
  // Your code.
}

}  // namespace trivet::exercise
