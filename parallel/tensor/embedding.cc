#include "parallel/tensor/embedding.h"

#include "parallel/tensor/sequence.h"

namespace trivet {

VocabParallelEmbedding::VocabParallelEmbedding(ParamList& params, const std::string& name, int64_t vocab_size,
                                               int64_t padded_vocab, int64_t hidden, Init init, Placement on_pp)
    : weight_(params.declare({.name = name + ".weight",
                              .global_shape = {padded_vocab, hidden},
                              .placement = {{Axis::tp, partitioned(0)}, {Axis::pp, on_pp}},
                              .init = init,
                              .decoupled_lr = true,
                              .padding_from = vocab_size,
                              .overwrite_on_first_use = true})) {}

void VocabParallelEmbedding::forward(Context& ctx, Tensor tokens, Residual out) const {
  reduce_sequence(ctx, out, [&](Partial partial) {
    ctx.run(op::EmbeddingForward{
        .tokens = tokens, .table = weight_.weight, .first_row = weight_.partition_offset, .out = partial});
  });
}

void VocabParallelEmbedding::backward_weight(Context& ctx, Tensor tokens, Residual dout) const {
  Scratch::Frame frame(ctx.scratch);
  // A tied output layer has overwritten the gradient already, unless that layer is on another stage or was deferred.
  if (weight_.take_overwrite()) ctx.run(op::Fill{weight_.grad, 0});
  ctx.run(op::EmbeddingBackward{.tokens = tokens,
                                .dout = gather_sequence(ctx, dout, frame),
                                .first_row = weight_.partition_offset,
                                .dtable = weight_.grad});
}

}  // namespace trivet
