// TensorGroup: the tensor-parallel group as layers see it: they gather what is partitioned and reduce what is partial,
// and can do nothing else over it.
#pragma once

#include "parallel/comm/comm.h"
#include "parallel/placed.h"

namespace trivet {

class TensorGroup {
 public:
  // sequence_parallel: residuals hold this rank's positions.
  TensorGroup(Communicator& group, bool sequence_parallel) : group_(group), sequence_parallel_(sequence_parallel) {}

  int size() const { return group_.size(); }
  int rank() const { return group_.rank(); }
  bool sequence_parallel() const { return sequence_parallel_; }

  // whole = the positions of all ranks. REQUIRES: sequence_parallel().
  void gather(Residual part, Whole whole, Stream& stream) const { group_.all_gather(part, whole, stream); }
  // sum = the ranks' terms, added. REQUIRES: without sequence_parallel() both are the same memory.
  void reduce(Partial term, Residual sum, Stream& stream) const {
    if (sequence_parallel_) group_.reduce_scatter(term, sum, Reduce::sum, stream);
    else if (group_.size() > 1) group_.all_reduce(term, Reduce::sum, stream);
  }
  // In place: the sum or the maximum of all ranks' numbers on every rank.
  Whole reduce(Partial numbers, Reduce op, Stream& stream) const {
    group_.all_reduce(numbers, op, stream);
    return Whole(Tensor(numbers));
  }

 private:
  Communicator& group_;
  bool sequence_parallel_;
};

}  // namespace trivet
