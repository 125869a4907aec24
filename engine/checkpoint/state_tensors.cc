#include "engine/checkpoint/state_tensors.h"

namespace trivet {

Slice slice_of(const Param& param, int64_t first, int64_t count) {
  const ParamSpec& spec = param.spec;
  const Shape shape = as_matrix(param.shape);
  Slice slice{.global = as_matrix(spec.global_shape),
              .row = param.first_row(),
              .rows = shape.rank == 2 ? shape[0] : 1,
              .col = param.first_column(),
              .cols = shape[-1],
              .first = first,
              .count = count};
  if (spec.padding_from >= 0) {
    check(shape.rank == 2 && param.partition_dim != 1, "only whole rows are padding");
    slice.global.dims[0] = spec.padding_from;
    slice.rows = std::clamp<int64_t>(spec.padding_from - slice.row, 0, slice.rows);
    slice.count = std::clamp<int64_t>(slice.rows * slice.cols - first, 0, count);
  }
  return slice;
}

namespace {

void add_state(std::vector<StateTensor>& tensors, const Optimizer& optimizer, const OwnedShard& shard, int64_t begin,
               int64_t end) {
  const Slice slice = slice_of(*shard.param, shard.first + begin, end - begin);
  if (slice.count == 0) return;
  const auto add = [&](std::string name, Tensor data) {
    tensors.push_back({std::move(name), slice, data.slice(begin, slice.count)});
  };
  const std::string& name = shard.param->spec.name;
  add(name, optimizer.main_weights(shard));
  for (const Optimizer::State& state : optimizer.states())
    add(fmt::format("optimizer.{}.{}", state.name, name), Optimizer::part(state.owned, shard));
}

}  // namespace

std::vector<StateTensor> state_tensors(const FlatBuffer& flat, const Optimizer& optimizer) {
  std::vector<StateTensor> tensors;
  for (const OwnedShard& shard : flat.owned) add_state(tensors, optimizer, shard, 0, shard.weight.numel());
  return tensors;
}

std::vector<StateTensor> saved_tensors(const FlatBuffer& flat, const Optimizer& optimizer) {
  std::vector<StateTensor> tensors;
  for (const OwnedShard& shard : flat.owned) {
    if (!shard.param->first_copy) continue;
    const int64_t n = shard.weight.numel(), rank = flat.options.rank, ranks = flat.options.ranks;
    if (flat.shards_optimizer()) add_state(tensors, optimizer, shard, 0, n);
    else add_state(tensors, optimizer, shard, n * rank / ranks, n * (rank + 1) / ranks);
  }
  return tensors;
}

int64_t saved_bytes(const FlatBuffer& flat, const Optimizer& optimizer) {
  int64_t bytes = 0;
  for (const StateTensor& tensor : saved_tensors(flat, optimizer)) bytes += tensor.data.bytes();
  return bytes;
}

}  // namespace trivet
