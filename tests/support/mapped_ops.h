// Ops that forward each call to other ops with other tensors: for test doubles of a device.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace trivet::test {

class MappedOps : public Ops {
 public:
  void run(const AnyOp& any, Stream& stream) override {
    std::visit(
        [&](auto op) {  // a copy
          const auto call = begin_call(op.kSpan.name, stream);
          int number = 0;
          for_each_field(op, [&](auto& field) { map(*call, field, ++number); });
          call->ops().run(op, call->stream());
        },
        any);
  }

 protected:
  // One call of an op. It is destroyed after the op has returned or thrown.
  class Call {
   public:
    virtual ~Call() = default;
    // The tensor passed to the op instead of `tensor`, which is not null. field: number of the op's field, from 1.
    virtual Tensor map(const Tensor& tensor, Role role, int field) = 0;
    virtual Ops& ops() = 0;
    virtual Stream& stream() = 0;
  };
  virtual std::unique_ptr<Call> begin_call(const char* op, Stream& stream) = 0;

 private:
  template <class T>
  static void map(Call& call, T& field, int number) {
    if constexpr (is_argument<T>) {
      if (field) field = call.map(field, T::role, number);
    } else if constexpr (is_list<T>) {
      std::vector elements(field.begin(), field.end());
      for (auto& element : elements) {
        if constexpr (is_argument<std::remove_reference_t<decltype(element)>>) map(call, element, number);
        else for_each_field(element, [&](auto& inner) { map(call, inner, number); });
      }
      field = std::move(elements);
    }
  }
};

}  // namespace trivet::test
