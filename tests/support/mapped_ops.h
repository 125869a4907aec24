// Ops that hand each call on to other ops with other tensors: for test doubles of a device.
#pragma once

#include <memory>
#include <span>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels/wrapped_ops.h"

namespace trivet::test {

class MappedOps : public WrappedOps<MappedOps> {
 protected:
  // One call of an op. It ends after the op has returned, or thrown.
  class Call {
   public:
    virtual ~Call() = default;
    // What the op is given instead of `tensor`, which is not null: the call's argument of this number, from 1.
    virtual Tensor map(const Tensor& tensor, int argument) = 0;
    virtual Ops& ops() = 0;
    virtual Stream& stream() = 0;
  };
  virtual std::unique_ptr<Call> begin_call(const char* op, Stream& stream) = 0;

 private:
  friend class WrappedOps<MappedOps>;
  // (ops.*op)(arguments..., stream) with the call's tensors, ops and stream.
  template <class Op, class... Arguments>
  void call(const char* name, Op op, Stream& stream, const Arguments&... arguments) {
    const auto call = begin_call(name, stream);
    int number = 0;
    // In braces, so that they are mapped from left to right.
    std::tuple<decltype(map_argument(*call, arguments, number))...> mapped{map_argument(*call, arguments, number)...};
    std::apply([&](const auto&... each) { (call->ops().*op)(each..., call->stream()); }, mapped);
  }
  template <class Op, class... Arguments>
  void call_once_a_step(const char* name, Op op, Stream& stream, const Arguments&... arguments) {
    call(name, op, stream, arguments...);
  }
  template <class T>
  static auto map_argument(Call& call, const T& argument, int& number) {
    ++number;
    const auto map = [&](Tensor& tensor) {
      if (tensor) tensor = call.map(tensor, number);
    };
    if constexpr (std::is_same_v<T, Tensor>) {
      Tensor tensor = argument;
      map(tensor);
      return tensor;
    } else if constexpr (std::is_same_v<T, std::span<const Tensor>>) {
      std::vector<Tensor> tensors(argument.begin(), argument.end());
      for (Tensor& tensor : tensors) map(tensor);
      return tensors;
    } else if constexpr (std::is_same_v<T, std::span<const AdamWPiece>>) {
      std::vector<AdamWPiece> pieces(argument.begin(), argument.end());
      for (AdamWPiece& piece : pieces)
        for (Tensor* tensor : {&piece.weight, &piece.grad, &piece.m, &piece.v, &piece.model_weight}) map(*tensor);
      return pieces;
    } else if constexpr (std::is_same_v<T, Dropout>) {
      Dropout dropout = argument;
      map(dropout.first_sample);
      return dropout;
    } else if constexpr (std::is_same_v<T, Attention>) {
      Attention how = argument;
      map(how.dropout.first_sample);
      return how;
    } else if constexpr (std::is_same_v<T, Matmul>) {
      Matmul how = argument;
      for (Tensor* tensor : {&how.bias, &how.before_gelu, &how.gelu_backward}) map(*tensor);
      return how;
    } else {
      return argument;
    }
  }
};

}  // namespace trivet::test
