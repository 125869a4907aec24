#include "parallel/data/grad_reduce.h"

namespace trivet {

GradReduce::GradReduce(FlatBuffer& flat, Arena& arena) : flat_(flat) {
  int64_t elements = 0;
  for (const FlatSegment& segment : flat_.segments) {
    if (segment.param->spec.name == kSharedEmbedding) shared_ = segment.param;
    if (!segment.param->spec.sum_over_tensor_group) continue;
    partial_.push_back(segment);
    elements += segment.param->shape.numel();
  }
  if (elements > 0) staging_ = arena.allocate(DType::f32, {elements});
}

void GradReduce::run(Ops& ops, Communicator& data, Communicator& tensor, Communicator* embedding, Stream& stream) {
  if (data.size() > 1) {
    for (const FlatBucket& bucket : flat_.buckets)
      data.all_reduce(flat_.grads.slice(bucket.begin, bucket.end - bucket.begin), Reduce::sum, stream);
  }
  if (!partial_.empty()) sum_partial(ops, tensor, stream);
  if (embedding) {
    check(shared_ != nullptr, "this rank is in the embedding group without the shared embedding");
    embedding->all_reduce(shared_->grad, Reduce::sum, stream);
  }
}

// One all-reduce for all of them: they are many and small.
void GradReduce::sum_partial(Ops& ops, Communicator& tensor, Stream& stream) {
  const auto for_each_part = [&](auto&& visit) {
    int64_t offset = 0;
    for (const FlatSegment& segment : partial_) {
      const Tensor grad = segment.param->grad;
      visit(grad, staging_.slice(offset, grad.numel()).view(grad.shape));
      offset += grad.numel();
    }
  };
  for_each_part([&](Tensor grad, Tensor staged) { ops.convert(grad, staged, stream); });
  tensor.all_reduce(staging_, Reduce::sum, stream);
  for_each_part([&](Tensor grad, Tensor staged) { ops.convert(staged, grad, stream); });
}

}  // namespace trivet
