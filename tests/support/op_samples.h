// One call of every op, on small tensors that its check() accepts: for properties of all ops. Each tensor has its
// own memory.
#pragma once

#include <functional>
#include <tuple>

#include "kernels/ops.h"

namespace trivet::test {

class OpSamples {
 public:
  // make: creates a tensor of the type and shape. Floats are in [-1, 1), integers 0 or 1.
  explicit OpSamples(std::function<Tensor(DType, Shape)> make) : make_(std::move(make)) {}

  // One sample per alternative of AnyOp, in the same order.
  std::vector<AnyOp> all() {
    return [this]<class... Op>(std::variant<Op...>*) {
      return std::vector<AnyOp>{sample(static_cast<Op*>(nullptr))...};
    }(static_cast<AnyOp*>(nullptr));
  }

 private:
  Tensor square() { return make_(DType::f32, {4, 4}); }
  Tensor row() { return make_(DType::f32, {4}); }
  Tensor one() { return make_(DType::f32, {1}); }
  Tensor cube() { return make_(DType::f32, {4, 2, 4}); }  // [s, b, h]
  Tensor bins() { return make_(DType::i64, {kExactSumBins}); }
  Tensor tokens() { return make_(DType::i32, {4, 2}); }
  // Two heads, with spare room after them, so that tests may change their strides.
  QkvViews qkv() {
    QkvViews views = qkv_views(Tensor{nullptr, DType::f32, {4, 2, 12}}, 2, 2);
    for (HeadsView* view : {&views.q, &views.k, &views.v}) view->memory = make_(DType::f32, {8, 2, 12});
    return views;
  }
  Dropout dropout() {
    return {.probability = 0.5f,
            .seed = 3,
            .site = 5,
            .first_sample = make_(DType::i64, {1}),
            .seq_length = 8,
            .total_heads = 4};
  }

  op::Amax sample(op::Amax*) { return {square(), one()}; }
  op::Quantize sample(op::Quantize*) { return {square(), one(), make_(DType::e4m3, {4, 4}), one()}; }
  op::Matmul sample(op::Matmul*) { return {.a = square(), .b = square(), .c = square()}; }
  op::ColumnSum sample(op::ColumnSum*) { return {square(), row()}; }
  op::LayernormForward sample(op::LayernormForward*) {
    return {.x = square(), .gamma = row(), .beta = row(), .eps = 1e-5f, .y = square(), .mean = row(), .rstd = row()};
  }
  op::LayernormBackward sample(op::LayernormBackward*) {
    return {.dy = square(),
            .x = square(),
            .gamma = row(),
            .mean = row(),
            .rstd = row(),
            .residual = square(),
            .dx = square(),
            .dgamma = row(),
            .dbeta = row()};
  }
  op::ActivationForward sample(op::ActivationForward*) { return {square(), square()}; }
  op::ActivationBackward sample(op::ActivationBackward*) { return {square(), square(), square()}; }
  op::RotaryTable sample(op::RotaryTable*) { return {{.width = 4}, square()}; }
  op::Rope sample(op::Rope*) {
    const QkvViews views = qkv();
    return {.q = views.q, .k = views.k, .table = make_(DType::f32, {4, 2})};
  }
  op::CopyHeads sample(op::CopyHeads*) { return {.from = qkv().k, .to = qkv().v, .accumulate = true}; }
  op::AttentionMerge sample(op::AttentionMerge*) {
    return {cube(), make_(DType::f32, {2, 2, 4}), cube(), make_(DType::f32, {2, 2, 4})};
  }
  op::AttentionForward sample(op::AttentionForward*) {
    return {.qkv = qkv(),
            .out = cube(),
            .lse = make_(DType::f32, {2, 2, 4}),
            .dropout = dropout(),
            .documents = {.starts = tokens()}};
  }
  op::AttentionBackward sample(op::AttentionBackward*) {
    return {.dout = cube(),
            .qkv = qkv(),
            .out = cube(),
            .lse = make_(DType::f32, {2, 2, 4}),
            .dqkv = qkv(),
            .dropout = dropout(),
            .documents = {.starts = tokens()}};
  }
  op::EmbeddingForward sample(op::EmbeddingForward*) { return {tokens(), square(), 0, cube()}; }
  op::EmbeddingBackward sample(op::EmbeddingBackward*) { return {tokens(), cube(), 0, square()}; }
  op::PositionForward sample(op::PositionForward*) { return {cube(), square(), dropout(), cube()}; }
  op::PositionBackward sample(op::PositionBackward*) { return {cube(), dropout(), cube(), square()}; }
  op::BiasDropoutAdd sample(op::BiasDropoutAdd*) { return {cube(), row(), cube(), dropout(), cube()}; }
  op::DropoutBackward sample(op::DropoutBackward*) { return {cube(), dropout(), cube()}; }
  op::CrossEntropyForward sample(op::CrossEntropyForward*) {
    return {.logits = square(),
            .targets = make_(DType::i32, {4}),
            .first_column = 0,
            .vocab_size = 3,
            .row_max = row(),
            .row_sum = row(),
            .target_logit = row()};
  }
  op::CrossEntropyRescale sample(op::CrossEntropyRescale*) { return {row(), row(), row()}; }
  op::CrossEntropyLoss sample(op::CrossEntropyLoss*) {
    return {make_(DType::i32, {4}), row(), row(), row(), 0.5f, one()};
  }
  op::CrossEntropyBackward sample(op::CrossEntropyBackward*) {
    return {.logits = square(),
            .targets = make_(DType::i32, {4}),
            .first_column = 0,
            .vocab_size = 3,
            .row_max = row(),
            .row_sum = row(),
            .scale = 0.5f};
  }
  op::AdamWStep sample(op::AdamWStep*) {
    return {.shards = {{row(), row(), row(), row(), make_(DType::bf16, {4})}},
            .grad_scale = one(),
            .accepted = one(),
            .how = {.learning_rate = 0.5f}};
  }
  op::SumOfSquares sample(op::SumOfSquares*) { return {{row(), row()}, bins()}; }
  op::ClipScale sample(op::ClipScale*) { return {bins(), 1, 1, one(), one()}; }
  op::CountLabels sample(op::CountLabels*) { return {one(), one(), 4, 1, row(), one()}; }
  op::AcceptStep sample(op::AcceptStep*) { return {row(), {.at_most = {1, 1, 1, 1}}, one()}; }
  op::FindNonFinite sample(op::FindNonFinite*) { return {row(), one(), make_(DType::i64, {kNonFiniteNumbers})}; }
  op::Fill sample(op::Fill*) { return {square(), 2}; }
  op::Clear sample(op::Clear*) { return {{square(), row()}}; }
  op::Convert sample(op::Convert*) { return {square(), square()}; }
  op::Add sample(op::Add*) { return {square(), square(), square()}; }

  const std::function<Tensor(DType, Shape)> make_;
};

}  // namespace trivet::test
