// The token embedding, partitioned by vocabulary rows over the tensor-parallel group (Shoeybi et al. 2019, section 3):
// each rank looks up the tokens in its rows and contributes zero for others; the sum over the group is the embedding.
#pragma once

#include <string>

#include "parallel/context.h"
#include "parallel/param.h"

namespace trivet {

class VocabParallelEmbedding {
 public:
  // padded_vocab is a multiple of the tensor-parallel size; rows from vocab_size on are padding. on_pp: partial if
  // another stage also uses the weight.
  VocabParallelEmbedding(ParamList& params, const std::string& name, int64_t vocab_size, int64_t padded_vocab,
                         int64_t hidden, Init init, Placement on_pp);

  // tokens: [s, b] int32, the whole sequence on every rank; out: [s, b, h], or [s/t, b, h] under sequence parallelism.
  void forward(Context& ctx, Tensor tokens, Residual out) const;
  void backward_weight(Context& ctx, Tensor tokens, Residual dout) const;
  Param& weight() { return weight_; }

 private:
  Param& weight_;  // [padded_vocab/t, h]
};

}  // namespace trivet
