#include "parallel/data/adam.h"

namespace trivet {

Adam::Adam(FlatBuffer& flat, Arena& arena)
    : flat_(flat),
      main_weights_(flat.options.dtype == DType::f32 ? Tensor{} : arena.allocate(DType::f32, {flat.owned_numel})),
      m_(arena.allocate(DType::f32, {flat.owned_numel})),
      v_(arena.allocate(DType::f32, {flat.owned_numel})),
      bins_(arena.allocate(DType::i64, {kExactSumBins})),
      norm_(arena.allocate(DType::f32, {1})),
      grad_scale_(arena.allocate(DType::f32, {1})) {}

void Adam::reset(Ops& ops, Stream& stream) {
  if (main_weights_)
    for (const OwnedPiece& piece : flat_.owned) ops.convert(piece.weight, main_weights(piece), stream);
  ops.fill(m_, 0, stream);
  ops.fill(v_, 0, stream);
}

void Adam::publish(Ops& ops, Stream& stream) {
  if (!main_weights_) return;
  for (const OwnedPiece& piece : flat_.owned) ops.convert(main_weights(piece), piece.weight, stream);
}

void Adam::compute_norm(Ops& ops, Communicator& tensor, Communicator& model, Communicator& data, float max_norm,
                        Stream& stream) {
  ops.fill(bins_, 0, stream);
  for (const OwnedPiece& piece : flat_.owned) {
    const bool replicated = piece.param->spec.cut_dim < 0;
    if (piece.param->spec.shared_copy) continue;
    if (!replicated || tensor.rank() == 0) ops.sum_of_squares(piece.grad, bins_, stream);
  }
  if (model.size() > 1) model.all_reduce(bins_, Reduce::sum, stream);
  if (flat_.shards_optimizer() && data.size() > 1) data.all_reduce(bins_, Reduce::sum, stream);
  ops.clip_scale(bins_, 1.0f, max_norm, norm_, grad_scale_, stream);
}

void Adam::step(Ops& ops, const AdamW& how, Stream& stream) {
  for (const OwnedPiece& piece : flat_.owned) {
    AdamW mine = how;
    if (!piece.param->spec.weight_decay) mine.weight_decay = 0;
    ops.adamw(main_weights(piece), piece.grad, first_moment(piece), second_moment(piece),
              main_weights_ ? piece.weight : Tensor{}, grad_scale_, mine, stream);
  }
}

}  // namespace trivet
