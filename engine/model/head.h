// The end of a GPT's last stage: the final layer norm, the GEMM with the (tied or separate) output embedding, and the
// vocab-parallel cross-entropy.
//
// With a vocabulary of 128k the logits are by far the largest activation. A chunked loss (GptShape::cross_entropy_rows)
// holds the logits of only one chunk of rows at a time: a training step leaves all but the norm to the backward pass,
// which immediately turns each chunk into its gradient. So no GEMM runs twice, and no logits are held between passes.
// The loss and all gradients but the output weight's, which is summed by chunk, are bitwise those of whole logits.
#pragma once

#include "engine/model/layernorm.h"
#include "engine/model/shape.h"
#include "parallel/context.h"
#include "parallel/param.h"
#include "parallel/tensor/cross_entropy.h"

namespace trivet {

struct HeadActivations {
  Residual norm_out;            // [s*, b, h]
  Tensor norm_mean, norm_rstd;  // [s*, b] fp32; RMSNorm has no mean
  // [s * b, padded_vocab/t]; backward, or forward if t = 1, overwrites them with their gradient. In chunks: [rows,
  // padded_vocab/t], shared by all micro-batches.
  Vocab logits;
  CrossEntropyState loss_state;  // [s * b] fp32 each; null in chunks
};
// logits: another slot's, to be shared; else null.
HeadActivations allocate_head_activations(Arena& arena, const GptShape& shape, Vocab logits = {});
// Views of the first rows of these buffers, for a shape with fewer positions.
HeadActivations front_of(HeadActivations acts, const GptShape& shape);

class Head {
 public:
  // output_weight: [padded_vocab/t, h], the word embedding's if they are tied and on the same rank; if null, the head
  // declares its own.
  Head(ParamList& params, const GptShape& shape, Param* output_weight);

  // x: [s*, b, h]; labels: [s, b] int32. loss[0] += loss_scale * sum over tokens, but a chunked loss is left to
  // backward if one follows. A pass over some positions (MicroBatch) computes only row 0 of the logits, the only one
  // read.
  void forward(Context& ctx, Residual x, Tensor labels, const MicroBatch& micro_batch, const HeadActivations& acts,
               Tensor loss) const;
  // grad: [s*, b, h] output, the gradient of x. Runs backward_weight, unless micro_batch.defer_head_weight.
  void backward(Context& ctx, Residual x, Tensor labels, const MicroBatch& micro_batch, const HeadActivations& acts,
                Residual grad, Tensor loss) const;
  // Adds the gradient of the output weight. norm_out: forward's output; d_logits: the logits after backward.
  void backward_weight(Context& ctx, Residual norm_out, Vocab d_logits) const;

 private:
  // Runs everything after the norm, chunk by chunk. d_norm: [s*, b, h] output, the gradient of norm_out; null: only the
  // loss.
  void run_in_chunks(Context& ctx, Tensor labels, const MicroBatch& micro_batch, const HeadActivations& acts,
                     Tensor loss, Residual d_norm) const;
  void add_weight_gradient(Context& ctx, const Tensor& d_logits, const Tensor& norm_out) const;
  VocabParallelCrossEntropy loss_over(Context& ctx, Tensor labels, const MicroBatch& micro_batch,
                                      const CrossEntropyState& state) const {
    return {
        ctx, labels.view({labels.numel()}), {output_.partition_offset, shape_.vocab}, micro_batch.loss_scale, state};
  }

  const GptShape& shape_;
  LayerNorm norm_;
  Param& output_;
};

}  // namespace trivet
