#include "engine/model/head.h"

#include "engine/model/modules.h"
#include "parallel/tensor/sequence.h"

namespace trivet {

namespace {

// make(buffer, its type, its shape) for each of the buffers.
template <class Make>
HeadActivations each_of(HeadActivations a, const GptShape& p, const Make& make) {
  a.norm_out = Residual(make(a.norm_out, p.dtype, p.hidden_shape()));
  a.norm_mean = make(a.norm_mean, DType::f32, p.means_shape());
  a.norm_rstd = make(a.norm_rstd, DType::f32, p.rows_shape());
  a.logits = Vocab(make(a.logits, p.dtype, Shape{p.rank_seq(), p.micro_batch, p.padded_vocab / p.t}));
  a.loss_state.row_max = make(a.loss_state.row_max, DType::f32, Shape{p.tokens()});
  a.loss_state.row_sum = make(a.loss_state.row_sum, DType::f32, Shape{p.tokens()});
  return a;
}

}  // namespace

HeadActivations allocate_head_activations(Arena& arena, const GptShape& p) {
  return each_of({}, p, [&](const Tensor&, DType dtype, const Shape& shape) { return arena.allocate(dtype, shape); });
}

HeadActivations front_of(HeadActivations acts, const GptShape& p) {
  return each_of(acts, p, [](const Tensor& buffer, DType, const Shape& shape) { return buffer.front(shape); });
}

namespace {

// Tied to an embedding on another stage, the weight keeps the embedding's name: it is the same weight.
ParamSpec output_spec(const GptShape& p) {
  return {.name = name_of(p.tied_embeddings ? Module::word_embeddings : Module::output_layer) + ".weight",
          .global_shape = {p.padded_vocab, p.hidden},
          .placement = {{Axis::tp, partitioned(0)}, {Axis::pp, p.tied_embeddings ? kPartial : partitioned()}},
          .init = {Init::normal, p.training.init_std},
          .decoupled_lr = true,
          .padding_from = p.vocab,
          .first_one_writes = true};
}

}  // namespace

Head::Head(ParamList& params, const GptShape& p, Param* output_weight)
    : shape_(p),
      norm_(params, name_of(Module::final_norm), p),
      output_(output_weight ? *output_weight : params.declare(output_spec(p))) {}

void Head::forward(Context& ctx, Residual x, Tensor labels, const MicroBatch& micro_batch, const HeadActivations& acts,
                   Tensor loss) const {
  norm_.forward(ctx, x, acts.norm_out, acts.norm_mean, acts.norm_rstd);
  {
    Scratch::Frame frame(ctx.scratch);
    ctx.run(op::Matmul{
        .a = gather_sequence(ctx, acts.norm_out, frame), .b = output_.weight, .c = acts.logits, .transpose_b = true});
  }
  vocab_parallel_cross_entropy_forward(ctx, acts.logits, labels, vocab_range(), micro_batch.loss_scale, acts.loss_state,
                                       loss, micro_batch.training);
}

void Head::backward(Context& ctx, Residual x, Tensor labels, const MicroBatch& micro_batch, const HeadActivations& acts,
                    Residual grad) const {
  vocab_parallel_cross_entropy_backward(ctx, acts.logits, labels, vocab_range(), micro_batch.loss_scale,
                                        acts.loss_state);
  // The weight half runs here even where a schedule keeps the halves apart: its input, the gradient of the logits, is
  // the largest tensor of the model, and holding it would cost more than the bubble that it could fill. A user may ask
  // for it all the same, for the last few micro-batches (defer_embedding_wgrad_compute).
  if (!micro_batch.defer_head_weight) backward_weight(ctx, acts.norm_out, acts.logits);
  Scratch::Frame frame(ctx.scratch);
  const Residual d_norm(frame.tensor(shape_.dtype, shape_.hidden_shape()));
  reduce_sequence(ctx, d_norm,
                  [&](Partial partial) { ctx.run(op::Matmul{.a = acts.logits, .b = output_.weight, .c = partial}); });
  norm_.backward(ctx, d_norm, x, acts.norm_mean, acts.norm_rstd, {}, grad);
}

void Head::backward_weight(Context& ctx, Residual norm_out, Vocab d_logits) const {
  Scratch::Frame frame(ctx.scratch);
  ctx.run(op::Matmul{.a = d_logits,
                     .b = gather_sequence(ctx, norm_out, frame),
                     .c = output_.grad,
                     .transpose_a = true,
                     .accumulate = !output_.take_overwrite()});
}

}  // namespace trivet
