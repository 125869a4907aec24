// The end of a GPT's last stage: the final layer norm, the GEMM with the (tied or own) output embedding, and the
// vocab-parallel cross-entropy.
#pragma once

#include "engine/model/layernorm.h"
#include "engine/model/shape.h"
#include "parallel/context.h"
#include "parallel/param.h"
#include "parallel/tensor/cross_entropy.h"

namespace trivet {

struct HeadActivations {
  Residual norm_out;             // [s*, b, h]
  Tensor norm_mean, norm_rstd;   // [s*, b] fp32; RMSNorm has no mean
  Vocab logits;                  // [s, b, padded_vocab/t]; its own gradient after backward, where t = 1 after forward
  CrossEntropyState loss_state;  // [s * b] fp32 each
};
HeadActivations allocate_head_activations(Arena& arena, const GptShape& shape);
// The beginnings of these buffers, for a shape of fewer positions.
HeadActivations front_of(HeadActivations acts, const GptShape& shape);

class Head {
 public:
  // output_weight: [padded_vocab/t, h]; the word embedding's where they are tied on one stage, else null: declared
  // here.
  Head(ParamList& params, const GptShape& shape, Param* output_weight);

  // x: [s*, b, h]; labels: [s, b] int32. loss[0] += loss_scale * sum over tokens.
  void forward(Context& ctx, Residual x, Tensor labels, const MicroBatch& micro_batch, const HeadActivations& acts,
               Tensor loss) const;
  // grad: [s*, b, h] output, the gradient of x. Runs backward_weight, unless micro_batch.defer_head_weight.
  void backward(Context& ctx, Residual x, Tensor labels, const MicroBatch& micro_batch, const HeadActivations& acts,
                Residual grad) const;
  // The gradient of the output weight. norm_out: as forward made it; d_logits: as backward left the logits.
  void backward_weight(Context& ctx, Residual norm_out, Vocab d_logits) const;

 private:
  VocabRange vocab_range() const { return {output_.partition_offset, shape_.vocab}; }

  const GptShape& shape_;
  LayerNorm norm_;
  Param& output_;
};

}  // namespace trivet
