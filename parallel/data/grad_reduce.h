// From the gradients that each rank accumulated over its micro-batches to those of the global batch.
#pragma once

#include <vector>

#include "kernels/ops.h"
#include "parallel/comm/comm.h"
#include "parallel/data/flat_buffer.h"

namespace trivet {

class GradReduce {
 public:
  // Staging memory for the parameters below comes from `arena`.
  GradReduce(FlatBuffer& flat, Arena& arena);

  // Sums every bucket over the data-parallel group; then, in one all-reduce, the replicated parameters of which each
  // tensor rank saw only its own positions (sequence parallelism) over the tensor group; then the weight that the first
  // and the last pipeline stage share over `embedding`, the two of them (null: no such weight here).
  void run(Ops& ops, Communicator& data, Communicator& tensor, Communicator* embedding, Stream& stream);

 private:
  void sum_partial(Ops& ops, Communicator& tensor, Stream& stream);

  FlatBuffer& flat_;
  std::vector<FlatSegment> partial_;  // those with sum_over_tensor_group
  Tensor staging_;                    // [their elements] fp32
  Param* shared_ = nullptr;           // the tied word embedding
};

}  // namespace trivet
