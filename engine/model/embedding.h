// The input of a GPT's first stage: token embedding, plus positions where they are learned, then dropout.
#pragma once

#include "engine/model/modules.h"
#include "engine/model/shape.h"
#include "parallel/context.h"
#include "parallel/param.h"
#include "parallel/tensor/embedding.h"

namespace trivet {

class Embedding {
 public:
  Embedding(ParamList& params, const GptShape& p, uint64_t dropout_seed)
      : shape_(p),
        dropout_seed_(dropout_seed),
        word_(params, name_of(Module::word_embeddings), p.vocab, p.padded_vocab, p.hidden,
              {Init::normal, p.training.init_std}, p.tied_embeddings ? kPartial : partitioned()),
        position_(p.positions == Positions::rope
                      ? nullptr
                      : &params.declare({.name = name_of(Module::position_embeddings) + ".weight",
                                         .global_shape = {p.whole_seq(), p.hidden},
                                         .init = {Init::normal, p.training.init_std},
                                         .used_on = Place::residual})) {}

  // tokens: [s, b] int32; out: [s*, b, h].
  void forward(Context& ctx, Tensor tokens, const MicroBatch& micro_batch, Residual out) const {
    word_.forward(ctx, tokens, out);
    if (!position_) return ctx.run(op::DropoutBackward{.dout = out, .dropout = dropout(micro_batch), .dx = out});
    const int64_t first = micro_batch.positions ? micro_batch.positions->first : 0;
    ctx.run(op::PositionForward{.x = out,
                                .positions = local_rows(position_->weight, out.shape[0], first),
                                .dropout = dropout(micro_batch),
                                .out = out});
  }
  // grad: [s*, b, h], the gradient of `out`; overwritten.
  void backward(Context& ctx, Tensor tokens, const MicroBatch& micro_batch, Residual grad) const {
    if (position_)
      ctx.run(op::PositionBackward{.dout = grad,
                                   .dropout = dropout(micro_batch),
                                   .dx = grad,
                                   .dpositions = local_rows(position_->grad, grad.shape[0])});
    else ctx.run(op::DropoutBackward{.dout = grad, .dropout = dropout(micro_batch), .dx = grad});
    word_.backward_weight(ctx, tokens, grad);
  }
  Param& word_weight() { return word_.weight(); }

 private:
  Dropout dropout(const MicroBatch& micro_batch) const {
    return make_dropout(shape_, DropoutSite::embedding, 0, dropout_seed_, micro_batch);
  }
  // Those of this rank's `count` positions of a pass that begins at `first`: [count, h].
  Tensor local_rows(Tensor positions, int64_t count, int64_t first = 0) const {
    return positions.slice(first + (shape_.sequence_parallel ? shape_.tensor_rank * count : 0), count);
  }

  const GptShape& shape_;
  uint64_t dropout_seed_;
  VocabParallelEmbedding word_;
  Param* const position_;  // [s, h]; null: rope
};

}  // namespace trivet
