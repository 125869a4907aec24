// The input of a GPT's first stage: token embedding plus learned positions, then dropout.
#pragma once

#include "engine/model/shape.h"
#include "parallel/context.h"
#include "parallel/param.h"
#include "parallel/tensor/embedding.h"

namespace trivet {

class Embedding {
 public:
  Embedding(ParamList& params, const GptShape& shape, uint64_t dropout_seed);

  // tokens: [s, b] int32; out: [s*, b, h].
  void forward(Context& ctx, Tensor tokens, const MicroBatch& micro_batch, Residual out) const;
  // grad: [s*, b, h], the gradient of `out`; overwritten.
  void backward(Context& ctx, Tensor tokens, const MicroBatch& micro_batch, Residual grad) const;
  Param& word_weight() { return word_.weight(); }

 private:
  Dropout dropout(const MicroBatch& micro_batch) const;
  Tensor local_rows(Tensor positions) const;  // those of this rank's positions: [s*, h]

  const GptShape& shape_;
  uint64_t dropout_seed_;
  VocabParallelEmbedding word_;
  Param& position_;  // [s, h]
};

}  // namespace trivet
