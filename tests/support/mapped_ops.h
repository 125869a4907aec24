// Ops that hand each call on to other ops with other tensors: the list of all operations for test doubles of a device.
#pragma once

#include <memory>
#include <span>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels/ops.h"

namespace trivet::test {

class MappedOps : public Ops {
 public:
  void matmul(Tensor a, Tensor b, Tensor c, const Matmul& how, Stream& stream) override;
  void column_sum(Tensor x, Tensor sum, Stream& stream) override;
  void layernorm_forward(Tensor x, Tensor gamma, Tensor beta, float eps, Tensor y, Tensor mean, Tensor rstd,
                         Stream& stream) override;
  void layernorm_backward(Tensor dy, Tensor x, Tensor gamma, Tensor mean, Tensor rstd, Tensor residual, Tensor dx,
                          Tensor dgamma, Tensor dbeta, Stream& stream) override;
  void gelu_forward(Tensor x, Tensor y, Stream& stream) override;
  void gelu_backward(Tensor x, Tensor dy, Tensor dx, Stream& stream) override;
  void attention_forward(Tensor qkv, Tensor out, Tensor lse, const Attention& how, Stream& stream) override;
  void attention_backward(Tensor dout, Tensor qkv, Tensor out, Tensor lse, Tensor dqkv, const Attention& how,
                          Stream& stream) override;
  void embedding_forward(Tensor tokens, Tensor table, int64_t first_row, Tensor out, Stream& stream) override;
  void embedding_backward(Tensor tokens, Tensor dout, int64_t first_row, Tensor dtable, Stream& stream) override;
  void position_forward(Tensor x, Tensor positions, const Dropout& dropout, Tensor out, Stream& stream) override;
  void position_backward(Tensor dout, const Dropout& dropout, Tensor dx, Tensor dpositions, Stream& stream) override;
  void bias_dropout_add(Tensor x, Tensor bias, Tensor residual, const Dropout& dropout, Tensor out,
                        Stream& stream) override;
  void dropout_backward(Tensor dout, const Dropout& dropout, Tensor dx, Stream& stream) override;
  void cross_entropy_forward(Tensor logits, Tensor targets, int64_t first_column, int64_t vocab_size, Tensor row_max,
                             Tensor row_sum, Tensor target_logit, Stream& stream) override;
  void cross_entropy_rescale(Tensor row_max, Tensor global_max, Tensor row_sum, Stream& stream) override;
  void cross_entropy_loss(Tensor row_max, Tensor row_sum, Tensor target_logit, float scale, Tensor loss,
                          Stream& stream) override;
  void cross_entropy_backward(Tensor logits, Tensor targets, int64_t first_column, int64_t vocab_size, Tensor row_max,
                              Tensor row_sum, float scale, Stream& stream) override;
  void adamw(std::span<const AdamWPiece> pieces, Tensor grad_scale, Tensor proceed, const AdamW& how,
             Stream& stream) override;
  void sum_of_squares(std::span<const Tensor> xs, Tensor bins, Stream& stream) override;
  void clip_scale(Tensor bins, float multiplier, float max_norm, Tensor norm, Tensor grad_scale,
                  Stream& stream) override;
  void judge_step(Tensor numbers, const StepLimits& limits, Tensor proceed, Stream& stream) override;
  void find_non_finite(Tensor x, Tensor proceed, Tensor found, Stream& stream) override;
  void fill(Tensor x, float value, Stream& stream) override;
  void convert(Tensor from, Tensor to, Stream& stream) override;
  void add(Tensor a, Tensor b, Tensor out, Stream& stream) override;

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
  // (ops.*op)(arguments..., stream) with the call's tensors, ops and stream.
  template <class Op, class... Arguments>
  void call(const char* name, Op op, Stream& stream, const Arguments&... arguments) {
    const auto call = begin_call(name, stream);
    int number = 0;
    // In braces, so that they are mapped from left to right.
    std::tuple<decltype(map_argument(*call, arguments, number))...> mapped{map_argument(*call, arguments, number)...};
    std::apply([&](const auto&... each) { (call->ops().*op)(each..., call->stream()); }, mapped);
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
