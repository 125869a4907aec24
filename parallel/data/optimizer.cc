#include "parallel/data/optimizer.h"

#include "kernels/ops.h"

namespace trivet {

Optimizer::Optimizer(FlatBuffer& flat, Arena& arena)
    : flat_(flat),
      main_weights_(flat.options.dtype == DType::f32 ? Tensor{} : arena.allocate(DType::f32, {flat.owned_numel})),
      grad_scale_(arena.allocate(DType::f32, {1})),
      all_bins_(arena.allocate(DType::i64, {2 * kExactSumBins})),
      bins_(all_bins_.slice(0, kExactSumBins)),
      watched_bins_(all_bins_.slice(kExactSumBins, kExactSumBins)),
      norm_(arena.allocate(DType::f32, {1})),
      watched_norm_(arena.allocate(DType::f32, {1})),
      ignored_(arena.allocate(DType::f32, {1})) {
  for (const OwnedShard& shard : flat_.owned) {
    // The gradients of a replicated parameter's other copies on the tensor ranks must be finite, too. (Two stages'
    // copies have the same sum.)
    if (shard.param->first_copy) counted_.push_back(shard.grad);
    else if (!shard.param->summed_over.has(Axis::pp)) checked_.push_back(shard.grad);
  }
}

void Optimizer::reset(Ops& ops, Stream& stream) {
  if (main_weights_)
    for (const OwnedShard& shard : flat_.owned) ops.run(op::Convert{shard.weight, main_weights(shard)}, stream);
  for (const State& state : states()) ops.run(op::Fill{state.owned, 0}, stream);
}

void Optimizer::publish(Ops& ops, Stream& stream) {
  if (!main_weights_) return;
  for (const OwnedShard& shard : flat_.owned) ops.run(op::Convert{main_weights(shard), shard.weight}, stream);
}

void Optimizer::compute_norm(Ops& ops, Communicator& model, Communicator& data, float max_norm, Tensor watched,
                             Stream& stream) {
  ops.run(op::Fill{all_bins_, 0}, stream);
  ops.run(op::SumOfSquares{.xs = counted_, .bins = bins_}, stream);
  ops.run(op::SumOfSquares{.xs = checked_, .bins = watched_bins_}, stream);
  if (watched) ops.run(op::SumOfSquares{.xs = {watched}, .bins = watched_bins_}, stream);
  if (model.size() > 1) model.all_reduce(all_bins_, Reduce::sum, stream);
  if (flat_.shards_optimizer() && data.size() > 1) data.all_reduce(bins_, Reduce::sum, stream);
  const auto clip = [&](Tensor bins, float most, Tensor norm, Tensor scale) {
    ops.run(op::ClipScale{.bins = bins, .multiplier = 1, .max_norm = most, .norm = norm, .grad_scale = scale}, stream);
  };
  clip(bins_, max_norm, norm_, grad_scale_);
  clip(watched_bins_, 0, watched_norm_, ignored_);
}

void Optimizer::count_labels(Ops& ops, Tensor missing, int64_t labels, float max_norm, Tensor numbers,
                             Stream& stream) {
  ops.run(op::CountLabels{.missing = missing,
                          .norm = norm_,
                          .labels = labels,
                          .max_norm = max_norm,
                          .numbers = numbers,
                          .grad_scale = grad_scale_},
          stream);
}

}  // namespace trivet
