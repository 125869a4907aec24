// Expect: the checks of shapes and types that every back end makes before it queues an op. A check that passes compares
// a few integers; only a check that fails builds a message.
//
// As in kernels/ops.h, "[n, c]" is a matrix: the last dimension is c, all others together are n. A vector "[n]" may
// have any shape of n elements (one mean per row may come as [s, b]).
#pragma once

#include <string>

#include "kernels/base/tensor.h"

namespace trivet {

// Checks the arguments of the named op, none of which may be null.
struct Expect {
  const char* op;

  [[noreturn]] void fail(const char* argument, const std::string& what, const std::string& expected) const {
    trivet::fail(std::string(op) + ": " + argument + " is " + what + ", expected " + expected);
  }
  static std::string describe(const Shape& shape, DType dtype) { return to_string(shape) + " " + name_of(dtype); }
  [[noreturn]] void mismatch(const char* argument, const Tensor& found, const std::string& expected) const {
    fail(argument, found ? describe(found.shape, found.dtype) : "a null tensor", expected);
  }

  // fp32 or bf16: the argument that sets the T of its op.
  void floats(const char* argument, const Tensor& t) const {
    if (!t || (t.dtype != DType::f32 && t.dtype != DType::bf16)) [[unlikely]]
      mismatch(argument, t, "fp32 or bf16");
  }
  void fp8(const char* argument, const Tensor& t) const {
    if (!t || !is_fp8(t.dtype)) [[unlikely]]
      mismatch(argument, t, "e4m3 or e5m2");
  }
  // [s, b, h] T.
  void activation(const char* argument, const Tensor& t) const {
    floats(argument, t);
    if (t.shape.rank != 3) [[unlikely]]
      mismatch(argument, t, std::string("3 dimensions of ") + name_of(t.dtype));
  }
  void vector(const char* argument, const Tensor& t, DType dtype, int64_t n) const {
    if (!t || t.dtype != dtype || t.numel() != n) [[unlikely]]
      mismatch(argument, t, describe({n}, dtype));
  }
  struct Named {
    const char* argument;
    const Tensor& tensor;
  };
  void vectors(DType dtype, int64_t n, std::initializer_list<Named> all) const {
    for (const Named& each : all) vector(each.argument, each.tensor, dtype, n);
  }
  void matrix(const char* argument, const Tensor& t, DType dtype, int64_t rows, int64_t cols) const {
    if (!t || t.dtype != dtype || t.cols() != cols || t.rows() != rows) [[unlikely]]
      mismatch(argument, t, describe({rows, cols}, dtype));
  }
  // The same type and matrix shape as another argument.
  void like(const char* argument, const Tensor& t, const Tensor& other) const {
    matrix(argument, t, other.dtype, other.rows(), other.cols());
  }
};

}  // namespace trivet
