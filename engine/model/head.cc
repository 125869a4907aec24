#include "engine/model/head.h"

#include "engine/model/modules.h"
#include "parallel/tensor/sequence.h"

namespace trivet {

namespace {

// Calls make(buffer, its type, its shape) for each buffer.
template <class Make>
HeadActivations each_of(HeadActivations a, const GptShape& p, const Make& make) {
  a.norm_out = Residual(make(a.norm_out, p.dtype, p.hidden_shape()));
  a.norm_mean = make(a.norm_mean, DType::f32, p.means_shape());
  a.norm_rstd = make(a.norm_rstd, DType::f32, p.rows_shape());
  a.logits = Vocab(make(a.logits, p.dtype, Shape{p.logit_rows(), p.padded_vocab / p.t}));
  if (p.loss_in_chunks()) return a;
  a.loss_state.row_max = make(a.loss_state.row_max, DType::f32, Shape{p.tokens()});
  a.loss_state.row_sum = make(a.loss_state.row_sum, DType::f32, Shape{p.tokens()});
  return a;
}

}  // namespace

HeadActivations allocate_head_activations(Arena& arena, const GptShape& p, Vocab logits) {
  HeadActivations shared;
  shared.logits = logits;
  return each_of(shared, p, [&](const Tensor& buffer, DType dtype, const Shape& shape) {
    return buffer ? buffer : arena.allocate(dtype, shape);
  });
}

HeadActivations front_of(HeadActivations acts, const GptShape& p) {
  return each_of(acts, p, [](const Tensor& buffer, DType, const Shape& shape) { return buffer.front(shape); });
}

namespace {

// A weight tied to an embedding on another stage keeps the embedding's name: it is the same weight.
ParamSpec output_spec(const GptShape& p) {
  return {.name = name_of(p.tied_embeddings ? Module::word_embeddings : Module::output_layer) + ".weight",
          .global_shape = {p.padded_vocab, p.hidden},
          .placement = {{Axis::tp, partitioned(0)}, {Axis::pp, p.tied_embeddings ? kPartial : partitioned()}},
          .init = {Init::normal, p.training.init_std},
          .decoupled_lr = true,
          .padding_from = p.vocab,
          .overwrite_on_first_use = true};
}

}  // namespace

Head::Head(ParamList& params, const GptShape& p, Param* output_weight)
    : shape_(p),
      norm_(params, name_of(Module::final_norm), p),
      output_(output_weight ? *output_weight : params.declare(output_spec(p))) {}

void Head::forward(Context& ctx, Residual x, Tensor labels, const MicroBatch& micro_batch, const HeadActivations& acts,
                   Tensor loss) const {
  norm_.forward(ctx, x, acts.norm_out, acts.norm_mean, acts.norm_rstd);
  if (shape_.loss_in_chunks() && !micro_batch.positions) {
    if (!micro_batch.training) run_in_chunks(ctx, labels, micro_batch, acts, loss, {});
    return;
  }
  {
    Scratch::Frame frame(ctx.scratch);
    Tensor rows = gather_sequence(ctx, acts.norm_out, frame);
    Tensor logits = acts.logits;
    if (micro_batch.positions) {
      rows = rows.slice(micro_batch.positions->read, 1).front({1, shape_.hidden});  // of batch entry 0
      logits = logits.slice(0, 1);
    }
    ctx.run(op::Matmul{.a = rows, .b = output_.weight, .c = logits, .transpose_b = true});
  }
  if (micro_batch.positions) return;
  VocabParallelCrossEntropy cross_entropy = loss_over(ctx, labels, micro_batch, acts.loss_state);
  cross_entropy.forward(acts.logits, 0, micro_batch.training);
  cross_entropy.add_loss(loss);
}

void Head::backward(Context& ctx, Residual x, Tensor labels, const MicroBatch& micro_batch, const HeadActivations& acts,
                    Residual grad, Tensor loss) const {
  Scratch::Frame frame(ctx.scratch);
  if (shape_.loss_in_chunks()) {
    const Residual d_norm(frame.tensor(shape_.dtype, shape_.hidden_shape()));
    run_in_chunks(ctx, labels, micro_batch, acts, loss, d_norm);
    return norm_.backward(ctx, d_norm, x, acts.norm_mean, acts.norm_rstd, {}, grad);
  }
  loss_over(ctx, labels, micro_batch, acts.loss_state).backward(acts.logits, 0);
  // The weight half runs here even if a schedule separates the halves: its input, the gradient of the logits, is the
  // largest tensor of the model, and holding it would cost more than the bubble that it could fill. A user may still
  // defer it for the last few micro-batches (defer_embedding_wgrad_compute).
  if (!micro_batch.defer_head_weight) backward_weight(ctx, acts.norm_out, acts.logits);
  const Residual d_norm(frame.tensor(shape_.dtype, shape_.hidden_shape()));
  reduce_sequence(ctx, d_norm,
                  [&](Partial partial) { ctx.run(op::Matmul{.a = acts.logits, .b = output_.weight, .c = partial}); });
  norm_.backward(ctx, d_norm, x, acts.norm_mean, acts.norm_rstd, {}, grad);
}

void Head::run_in_chunks(Context& ctx, Tensor labels, const MicroBatch& micro_batch, const HeadActivations& acts,
                         Tensor loss, Residual d_norm) const {
  Scratch::Frame frame(ctx.scratch);
  const int64_t n = labels.numel(), most = shape_.logit_rows();
  const Shape matrix{n, shape_.hidden};
  const Tensor norm_out = gather_sequence(ctx, acts.norm_out, frame).view(matrix);
  VocabParallelCrossEntropy cross_entropy = loss_over(ctx, labels, micro_batch, {});
  const auto each_chunk = [&](const Tensor& d_norm_out) {
    for (int64_t first = 0; first < n; first += most) {
      const int64_t rows = std::min(most, n - first);
      const Tensor x = norm_out.slice(first, rows);
      const Vocab logits = acts.logits.slice(0, rows);
      ctx.run(op::Matmul{.a = x, .b = output_.weight, .c = logits, .transpose_b = true});
      cross_entropy.forward(logits, first, static_cast<bool>(d_norm_out));
      if (!d_norm_out) continue;
      cross_entropy.backward(logits, first);
      add_weight_gradient(ctx, logits, x);
      ctx.run(op::Matmul{.a = logits, .b = output_.weight, .c = d_norm_out.slice(first, rows)});
    }
  };
  if (d_norm) reduce_sequence(ctx, d_norm, [&](Partial partial) { each_chunk(partial.view(matrix)); });
  else each_chunk({});
  cross_entropy.add_loss(loss);
}

void Head::backward_weight(Context& ctx, Residual norm_out, Vocab d_logits) const {
  Scratch::Frame frame(ctx.scratch);
  add_weight_gradient(ctx, d_logits, gather_sequence(ctx, norm_out, frame));
}

void Head::add_weight_gradient(Context& ctx, const Tensor& d_logits, const Tensor& norm_out) const {
  ctx.run(op::Matmul{
      .a = d_logits, .b = norm_out, .c = output_.grad, .transpose_a = true, .accumulate = !output_.take_overwrite()});
}

}  // namespace trivet
