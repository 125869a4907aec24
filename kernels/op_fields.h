// The fields of an op's struct (kernels/ops.h): tensors whose types say whether the op reads or writes them, lists,
// numbers, and plain structs of these. for_each_field() visits them in declaration order, so that code that treats
// every argument of every op alike (graph keys, tensor mirrors, recorders) does not depend on any particular op.
#pragma once

#include <algorithm>
#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/base/tensor.h"

namespace trivet {

// in: read. out: written and never read. in_out: read and written, like an accumulated sum.
enum class Role { in, out, in_out };

// A tensor argument of an op. Only an optional one may be null.
template <Role role_, bool optional_ = false>
struct Argument : Tensor {
  static constexpr Role role = role_;
  static constexpr bool optional = optional_;
  Argument() = default;
  Argument(const Tensor& tensor) : Tensor(tensor) {}  // NOLINT: it is that tensor
};
using In = Argument<Role::in>;
using Out = Argument<Role::out>;
using InOut = Argument<Role::in_out>;
using OptionalIn = Argument<Role::in, true>;
using OptionalOut = Argument<Role::out, true>;
using OptionalInOut = Argument<Role::in_out, true>;

// Immutable elements, shared by all copies: an op may run long after its call.
template <class T>
class List {
 public:
  List() = default;
  List(std::vector<T> elements)  // NOLINT: it is that vector
      : elements_(std::make_shared<const std::vector<T>>(std::move(elements))) {}
  List(std::initializer_list<T> elements) : List(std::vector<T>(elements)) {}
  template <std::convertible_to<T> U>
  List(const std::vector<U>& elements)  // NOLINT: Tensors, as inputs or outputs
      : List(std::vector<T>(elements.begin(), elements.end())) {}
  size_t size() const { return elements_ ? elements_->size() : 0; }
  const T* begin() const { return elements_ ? elements_->data() : nullptr; }
  const T* end() const { return begin() + size(); }
  const T& operator[](size_t i) const { return (*elements_)[i]; }

 private:
  std::shared_ptr<const std::vector<T>> elements_;
};

template <class T>
constexpr bool is_argument = std::is_base_of_v<Tensor, std::remove_cv_t<T>>;
template <class T>
constexpr bool is_list = false;
template <class T>
constexpr bool is_list<List<T>> = true;
template <class T>
constexpr bool is_list<const List<T>> = true;

namespace op_fields {

struct Anything {
  template <class T>
  operator T() const;  // NOLINT: it stands for a field of any type
};
template <class Struct, class... Fields>
constexpr size_t count() {
  if constexpr (requires { Struct{Fields()..., Anything()}; }) return count<Struct, Fields..., Anything>();
  else return sizeof...(Fields);
}

// Calls f(field) for each field of a plain struct. (C++26's packs in structured bindings will replace the cases.)
template <class Struct, class F>
void visit(Struct& all, F&& f) {
  constexpr size_t n = count<std::remove_const_t<Struct>>();
  const auto each = [&](auto&... field) { (f(field), ...); };
  static_assert(n >= 1 && n <= 13, "a struct of an op has one to thirteen fields: add a case");
#define TRIVET_CASE(fields, ...) \
  if constexpr (n == fields) {   \
    auto& [__VA_ARGS__] = all;   \
    each(__VA_ARGS__);           \
  }
  TRIVET_CASE(1, a)
  TRIVET_CASE(2, a, b)
  TRIVET_CASE(3, a, b, c)
  TRIVET_CASE(4, a, b, c, d)
  TRIVET_CASE(5, a, b, c, d, e)
  TRIVET_CASE(6, a, b, c, d, e, g)
  TRIVET_CASE(7, a, b, c, d, e, g, h)
  TRIVET_CASE(8, a, b, c, d, e, g, h, i)
  TRIVET_CASE(9, a, b, c, d, e, g, h, i, j)
  TRIVET_CASE(10, a, b, c, d, e, g, h, i, j, k)
  TRIVET_CASE(11, a, b, c, d, e, g, h, i, j, k, l)
  TRIVET_CASE(12, a, b, c, d, e, g, h, i, j, k, l, m)
  TRIVET_CASE(13, a, b, c, d, e, g, h, i, j, k, l, m, o)
#undef TRIVET_CASE
}

}  // namespace op_fields

// Calls f on every tensor, list, number and enum of an op, and of the structs in it. `all` may be const.
template <class Struct, class F>
void for_each_field(Struct& all, F&& f) {
  op_fields::visit(all, [&]<class T>(T& field) {
    if constexpr (is_argument<T> || is_list<T> || std::is_arithmetic_v<T> || std::is_enum_v<T>) f(field);
    else if constexpr (requires { std::tuple_size<T>::value; }) std::for_each(field.begin(), field.end(), f);  // array
    else for_each_field(field, f);
  });
}

}  // namespace trivet
