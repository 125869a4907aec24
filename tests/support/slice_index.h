#pragma once

#include <cstdint>

#include "engine/checkpoint/slice.h"

namespace trivet::test {

// The index of a slice's i-th element in the whole tensor.
inline int64_t global_index(const Slice& s, int64_t i) {
  const int64_t at = s.first + i;
  return (s.row + at / s.cols) * s.global_cols() + s.col + at % s.cols;
}

}  // namespace trivet::test
