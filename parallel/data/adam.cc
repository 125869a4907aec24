#include "parallel/data/adam.h"

namespace trivet {

Adam::Adam(FlatBuffer& flat, Arena& arena)
    : flat_(flat),
      main_weights_(flat.weights.dtype == DType::f32 ? flat.weights : arena.allocate(DType::f32, {flat.numel})),
      m_(arena.allocate(DType::f32, {flat.numel})),
      v_(arena.allocate(DType::f32, {flat.numel})),
      bins_(arena.allocate(DType::i64, {kExactSumBins})),
      norm_(arena.allocate(DType::f32, {1})),
      grad_scale_(arena.allocate(DType::f32, {1})) {}

void Adam::reset(Ops& ops, Stream& stream) {
  if (main_weights_.data != flat_.weights.data) ops.convert(flat_.weights, main_weights_, stream);
  ops.fill(m_, 0, stream);
  ops.fill(v_, 0, stream);
}

void Adam::compute_norm(Ops& ops, Communicator& tensor, Communicator& model, float max_norm, Stream& stream) {
  ops.fill(bins_, 0, stream);
  for (const FlatSegment& segment : flat_.segments) {
    const bool replicated = segment.param->spec.cut_dim < 0;
    if (segment.param->spec.shared_copy) continue;
    if (!replicated || tensor.rank() == 0) ops.sum_of_squares(segment.param->grad, bins_, stream);
  }
  if (model.size() > 1) model.all_reduce(bins_, Reduce::sum, stream);
  ops.clip_scale(bins_, 1.0f, max_norm, norm_, grad_scale_, stream);
}

void Adam::step(Ops& ops, const AdamW& how, Stream& stream) {
  const bool bf16_model = main_weights_.data != flat_.weights.data;
  for (const FlatSegment& segment : flat_.segments) {
    AdamW mine = how;
    if (!segment.param->spec.weight_decay) mine.weight_decay = 0;
    ops.adamw(view_of(main_weights_, segment), segment.param->grad, view_of(m_, segment), view_of(v_, segment),
              bf16_model ? segment.param->weight : Tensor{}, grad_scale_, mine, stream);
  }
}

}  // namespace trivet
