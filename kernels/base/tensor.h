// Tensor: a view of memory that an Arena owns: pointer, element type, and a shape of up to four dimensions, row-major
// and contiguous. Copy it freely; views and slices are functions that return another Tensor.
#pragma once

#include <array>
#include <cassert>
#include <initializer_list>
#include <string>

#include "kernels/base/dtype.h"

namespace trivet {

struct Shape {
  std::array<int64_t, 4> dims{};
  int rank = 0;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) {
    check(sizes.size() <= dims.size(), "a shape has at most four dimensions");
    for (int64_t n : sizes) dims[static_cast<size_t>(rank++)] = n;
  }
  int64_t operator[](int i) const { return dims[static_cast<size_t>(i < 0 ? i + rank : i)]; }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dims[static_cast<size_t>(i)];
    return n;
  }
  bool operator==(const Shape&) const = default;
};

inline std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  explicit operator bool() const { return data != nullptr; }
  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const { return numel() * size_of(dtype); }
  // As a matrix: all dimensions but the last are rows.
  int64_t cols() const { return shape.rank == 0 ? 1 : shape[-1]; }
  int64_t rows() const { return cols() == 0 ? 0 : numel() / cols(); }

  template <class T>
  T* as() const {
    assert(dtype == dtype_of<T>());
    return static_cast<T*>(data);
  }

  // The same elements in another shape. REQUIRES: equal number of elements.
  Tensor view(Shape other) const {
    if (other.numel() != numel()) fail("view of " + to_string(shape) + " as " + to_string(other));
    return {data, dtype, other};
  }
  // The first elements, in another shape. REQUIRES: it has no more elements than this.
  Tensor front(Shape other) const {
    if (other.numel() > numel()) fail("front of " + to_string(shape) + " as " + to_string(other));
    return {data, dtype, other};
  }
  // Rows [begin, begin + count) of the first dimension.
  Tensor slice(int64_t begin, int64_t count) const {
    if (shape.rank == 0 || begin < 0 || count < 0 || begin + count > shape[0])
      fail("slice [" + std::to_string(begin) + ", +" + std::to_string(count) + ") of " + to_string(shape));
    Tensor part = *this;
    part.shape.dims[0] = count;
    const int64_t stride = shape[0] == 0 ? 0 : bytes() / shape[0];
    part.data = static_cast<std::byte*>(data) + begin * stride;
    return part;
  }
};

}  // namespace trivet
