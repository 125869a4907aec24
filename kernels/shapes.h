// The checks of shapes and types that every back end makes before it queues an op. A check that passes compares a
// few integers; only a check that fails builds a text, which names the op, the argument, what was found and what was
// expected.
//
// As in kernels/ops.h, "[n, c]" is a matrix: the last dimension is c, all others together are n. A vector "[n]" may
// have any shape of n elements (a mean a row may come as [s, b]).
#pragma once

#include <string>

#include "kernels/base/tensor.h"

namespace trivet::shapes {

[[noreturn]] inline void mismatch(const char* op, const char* argument, const Tensor& found,
                                  const std::string& expected) {
  const std::string what =
      found ? to_string(found.shape) + " " + std::string(name_of(found.dtype)) : std::string("a null tensor");
  fail(std::string(op) + ": " + argument + " is " + what + ", expected " + expected);
}

inline std::string describe(DType dtype, std::initializer_list<int64_t> sizes) {
  return to_string(Shape(sizes)) + " " + name_of(dtype);
}

// There, and fp32 or bf16: the argument that sets the T of its op.
inline void expect_float(const char* op, const char* argument, const Tensor& t) {
  if (!t || (t.dtype != DType::f32 && t.dtype != DType::bf16)) [[unlikely]]
    mismatch(op, argument, t, "fp32 or bf16");
}

// There, of this type and with this number of dimensions.
inline void expect_rank(const char* op, const char* argument, const Tensor& t, DType dtype, int rank) {
  if (!t || t.dtype != dtype || t.shape.rank != rank) [[unlikely]]
    mismatch(op, argument, t, std::to_string(rank) + " dimensions of " + name_of(dtype));
}

// [s, b, h] T.
inline void expect_activation(const char* op, const char* argument, const Tensor& t) {
  expect_float(op, argument, t);
  expect_rank(op, argument, t, t.dtype, 3);
}

inline void expect_vector(const char* op, const char* argument, const Tensor& t, DType dtype, int64_t n) {
  if (!t || t.dtype != dtype || t.numel() != n) [[unlikely]]
    mismatch(op, argument, t, describe(dtype, {n}));
}

inline void expect_matrix(const char* op, const char* argument, const Tensor& t, DType dtype, int64_t rows,
                          int64_t cols) {
  if (!t || t.dtype != dtype || t.cols() != cols || t.rows() != rows) [[unlikely]]
    mismatch(op, argument, t, describe(dtype, {rows, cols}));
}

// The same type, and the same matrix, as another argument.
inline void expect_like(const char* op, const char* argument, const Tensor& t, const Tensor& other) {
  expect_matrix(op, argument, t, other.dtype, other.rows(), other.cols());
}

}  // namespace trivet::shapes
