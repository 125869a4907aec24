#include "parallel/data/adam.h"

#include "kernels/ops.h"

namespace trivet {

Adam::Adam(FlatBuffer& flat, Arena& arena, const Constants& constants, bool decoupled)
    : Optimizer(flat, arena),
      constants_(constants),
      m_(arena.allocate(DType::f32, {flat.owned_numel})),
      v_(arena.allocate(DType::f32, {flat.owned_numel})) {
  std::vector<AdamWShard> shards, apart;
  for (const OwnedShard& shard : flat_.owned)
    (decoupled && shard.param->spec.decoupled_lr ? apart : shards)
        .push_back({.weight = main_weights(shard),
                    .grad = shard.grad,
                    .m = part(m_, shard),
                    .v = part(v_, shard),
                    .model_weight = main_weights_ ? shard.weight : Tensor{},
                    .decays = shard.param->spec.weight_decay});
  shards_ = std::move(shards);
  decoupled_ = std::move(apart);
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
