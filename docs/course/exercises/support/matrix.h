// A small matrix for the exercises, row by row in memory.
#pragma once

#include <cstdint>
#include <vector>

namespace trivet::exercise {

struct Matrix {
  Matrix(int64_t rows, int64_t cols) : rows(rows), cols(cols), values(static_cast<size_t>(rows * cols)) {}
  float& operator()(int64_t row, int64_t col) { return values[static_cast<size_t>(row * cols + col)]; }
  float operator()(int64_t row, int64_t col) const { return values[static_cast<size_t>(row * cols + col)]; }

  int64_t rows, cols;
  std::vector<float> values;
};

inline Matrix transpose(const Matrix& a) {
  Matrix t(a.cols, a.rows);
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = 0; j < a.cols; ++j) t(j, i) = a(i, j);
  return t;
}

inline Matrix matmul(const Matrix& a, const Matrix& b) {  // a [m, k], b [k, n]
  Matrix c(a.rows, b.cols);
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t k = 0; k < a.cols; ++k)
      for (int64_t j = 0; j < b.cols; ++j) c(i, j) += a(i, k) * b(k, j);
  return c;
}

}  // namespace trivet::exercise
