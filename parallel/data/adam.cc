#include "parallel/data/adam.h"

#include "kernels/ops.h"

namespace trivet {

Adam::Adam(FlatBuffer& flat, Arena& arena, const Constants& constants, bool decoupled)
    : flat_(flat),
      constants_(constants),
      main_weights_(flat.options.dtype == DType::f32 ? Tensor{} : arena.allocate(DType::f32, {flat.owned_numel})),
      grad_scale_(arena.allocate(DType::f32, {1})),
      all_bins_(arena.allocate(DType::i64, {2 * kExactSumBins})),
      bins_(all_bins_.slice(0, kExactSumBins)),
      watched_bins_(all_bins_.slice(kExactSumBins, kExactSumBins)),
      norm_(arena.allocate(DType::f32, {1})),
      watched_norm_(arena.allocate(DType::f32, {1})),
      ignored_(arena.allocate(DType::f32, {1})),
      m_(arena.allocate(DType::f32, {flat.owned_numel})),
      v_(arena.allocate(DType::f32, {flat.owned_numel})) {
  std::vector<AdamWShard> shards, apart;
  for (const OwnedShard& shard : flat_.owned) {
    // The gradients of a replicated parameter's other copies on the tensor ranks must be finite, too. (Two stages'
    // copies have the same sum.)
    if (shard.param->first_copy) counted_.push_back(shard.grad);
    else if (!shard.param->summed_over.has(Axis::pp)) checked_.push_back(shard.grad);
    (decoupled && shard.param->spec.decoupled_lr ? apart : shards)
        .push_back({.weight = main_weights(shard),
                    .grad = shard.grad,
                    .m = part(m_, shard),
                    .v = part(v_, shard),
                    .model_weight = main_weights_ ? shard.weight : Tensor{},
                    .decays = shard.param->spec.weight_decay});
  }
  shards_ = std::move(shards);
  decoupled_ = std::move(apart);
}

void Adam::reset(Ops& ops, Stream& stream) {
  if (main_weights_)
    for (const OwnedShard& shard : flat_.owned) ops.run(op::Convert{shard.weight, main_weights(shard)}, stream);
  for (const State& state : states()) ops.run(op::Fill{state.owned, 0}, stream);
}

void Adam::publish(Ops& ops, Stream& stream) {
  if (!main_weights_) return;
  for (const OwnedShard& shard : flat_.owned) ops.run(op::Convert{main_weights(shard), shard.weight}, stream);
}

void Adam::compute_norm(Ops& ops, Communicator& model, Communicator& data, float max_norm, Tensor watched,
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

void Adam::count_labels(Ops& ops, Tensor missing, int64_t labels, float max_norm, Tensor numbers, Stream& stream) {
  ops.run(op::CountLabels{.missing = missing,
                          .norm = norm_,
                          .labels = labels,
                          .max_norm = max_norm,
                          .numbers = numbers,
                          .grad_scale = grad_scale_},
          stream);
}

void Adam::step(Ops& ops, Tensor accepted, const UpdateStep& how, Stream& stream) {
  const auto update = [&](const List<AdamWShard>& shards, double learning_rate) {
    if (shards.size() == 0) return;
    ops.run(op::AdamWStep{.shards = shards,
                          .grad_scale = grad_scale_,
                          .accepted = accepted,
                          .how = {.learning_rate = static_cast<float>(learning_rate),
                                  .beta1 = static_cast<float>(constants_.beta1),
                                  .beta2 = static_cast<float>(constants_.beta2),
                                  .eps = static_cast<float>(constants_.eps),
                                  .weight_decay = static_cast<float>(how.weight_decay),
                                  .step = how.step}},
            stream);
  };
  update(shards_, how.learning_rate);
  update(decoupled_, how.decoupled_lr);
}

}  // namespace trivet
