#include "engine/checkpoint/state_tensors.h"

namespace trivet {
namespace {

// Calls f(piece, begin, end) with the elements of each owned piece that this rank saves.
template <class F>
void for_each_saved(const FlatBuffer& flat, F&& f) {
  for (const OwnedShard& piece : flat.owned) {
    if (!piece.param->first_copy) continue;
    const int64_t n = piece.weight.numel();
    if (flat.shards_optimizer()) f(piece, int64_t{0}, n);
    else f(piece, n * flat.options.rank / flat.options.ranks, n * (flat.options.rank + 1) / flat.options.ranks);
  }
}

void add_state(std::vector<StateTensor>& tensors, const Adam& adam, const OwnedShard& piece, int64_t begin,
               int64_t end) {
  const Slice slice = slice_of(*piece.param, piece.first + begin, end - begin);
  if (slice.count == 0) return;
  const auto add = [&](std::string name, Tensor data) {
    tensors.push_back({std::move(name), slice, data.slice(begin, slice.count)});
  };
  const std::string& name = piece.param->spec.name;
  add(name, adam.main_weights(piece));
  add(kFirstMoment + name, adam.first_moment(piece));
  add(kSecondMoment + name, adam.second_moment(piece));
}

}  // namespace

std::vector<StateTensor> state_tensors(const FlatBuffer& flat, const Adam& adam) {
  std::vector<StateTensor> tensors;
  for (const OwnedShard& piece : flat.owned) add_state(tensors, adam, piece, 0, piece.weight.numel());
  return tensors;
}

std::vector<StateTensor> saved_tensors(const FlatBuffer& flat, const Adam& adam) {
  std::vector<StateTensor> tensors;
  for_each_saved(
      flat, [&](const OwnedShard& piece, int64_t begin, int64_t end) { add_state(tensors, adam, piece, begin, end); });
  return tensors;
}

int64_t saved_bytes(const FlatBuffer& flat) {
  int64_t elements = 0;
  for_each_saved(flat, [&](const OwnedShard& piece, int64_t begin, int64_t end) {
    elements += slice_of(*piece.param, piece.first + begin, end - begin).count;
  });
  return 3 * elements * size_of(DType::f32);
}

}  // namespace trivet
