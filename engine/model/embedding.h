// The input of a GPT's first stage: token embedding, plus position embeddings if they are learned, then dropout.
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
    if (const Tensor ids = ids_of(micro_batch, out))
      return ctx.run(op::PositionForward{
          .x = out, .positions = position_->weight, .dropout = dropout(micro_batch), .out = out, .ids = ids});
    for_runs(micro_batch, out, [&](Tensor rows, int64_t first, const Dropout& dropout) {
      const Tensor positions = position_->weight.slice(first, rows.shape[0]);
      ctx.run(op::PositionForward{.x = rows, .positions = positions, .dropout = dropout, .out = rows});
    });
  }
  // grad: [s*, b, h], the gradient of `out`; overwritten.
  void backward(Context& ctx, Tensor tokens, const MicroBatch& micro_batch, Residual grad) const {
    const Tensor ids = ids_of(micro_batch, grad);
    if (!position_ || ids) ctx.run(op::DropoutBackward{.dout = grad, .dropout = dropout(micro_batch), .dx = grad});
    if (ids) ctx.run(op::EmbeddingBackward{.tokens = ids, .dout = grad, .first_row = 0, .dtable = position_->grad});
    else if (position_)
      for_runs(micro_batch, grad, [&](Tensor rows, int64_t first, const Dropout& dropout) {
        const Tensor dpositions = position_->grad.slice(first, rows.shape[0]);
        ctx.run(op::PositionBackward{.dout = rows, .dropout = dropout, .dx = rows, .dpositions = dpositions});
      });
    word_.backward_weight(ctx, tokens, grad);
  }
  Param& word_weight() { return word_.weight(); }

 private:
  Dropout dropout(const MicroBatch& micro_batch) const {
    return make_dropout(shape_, DropoutSite::embedding, 0, dropout_seed_, micro_batch);
  }
  // The position ids of the rows of x; null without learned positions or ids.
  Tensor ids_of(const MicroBatch& micro_batch, Residual x) const {
    const int64_t rows = x.shape[0];
    if (!position_ || !micro_batch.position_ids) return {};
    return micro_batch.position_ids.slice(shape_.sequence_parallel ? shape_.tensor_rank * rows : 0, rows);
  }
  // Calls f(rows of x, position of the first row, their dropout) for each run of consecutive positions on this rank.
  template <class F>
  void for_runs(const MicroBatch& micro_batch, Residual x, const F& f) const {
    const int64_t rows = x.shape[0];
    const Dropout all = dropout(micro_batch);
    PositionMap map = shape_.residual_positions();
    if (micro_batch.positions)
      map = {micro_batch.positions->first + (shape_.sequence_parallel ? shape_.tensor_rank * rows : 0)};
    map.for_runs(rows, [&](int64_t row, int64_t count, int64_t position) {
      Dropout of_run = all;
      of_run.positions = all.positions.from(row);
      f(x.slice(row, count), position, of_run);
    });
  }

  const GptShape& shape_;
  uint64_t dropout_seed_;
  VocabParallelEmbedding word_;
  Param* const position_;  // [s, h]; null: rope
};

}  // namespace trivet
