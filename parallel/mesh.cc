#include "parallel/mesh.h"

namespace trivet {

MeshPosition position_of(int rank, const MeshShape& shape) {
  check(rank >= 0 && rank < shape.world(),
        "rank " + std::to_string(rank) + " is outside a mesh of " + std::to_string(shape.world()) + " ranks");
  const int tp = rank % shape.t, rest = rank / shape.t;
  if (shape.order == RankOrder::tp_dp_pp) return {.tp = tp, .pp = rest / shape.d, .dp = rest % shape.d};
  return {.tp = tp, .pp = rest % shape.p, .dp = rest / shape.p};
}

int rank_of(const MeshPosition& at, const MeshShape& shape) {
  if (shape.order == RankOrder::tp_dp_pp) return at.tp + shape.t * (at.dp + shape.d * at.pp);
  return at.tp + shape.t * (at.pp + shape.p * at.dp);
}

Mesh make_mesh(Communicator& world, const MeshShape& shape) {
  check(world.size() == shape.world(), "the mesh has " + std::to_string(shape.t) + " tensor * " +
                                           std::to_string(shape.p) + " pipeline * " + std::to_string(shape.d) +
                                           " data = " + std::to_string(shape.world()) + " ranks, the world has " +
                                           std::to_string(world.size()));
  Mesh mesh;
  mesh.shape = shape;
  mesh.at = position_of(world.rank(), shape);
  const auto [tp, pp, dp] = mesh.at;
  std::vector<int> tensor, data, pipeline, model;
  for (int i = 0; i < shape.t; ++i) tensor.push_back(rank_of({.tp = i, .pp = pp, .dp = dp}, shape));
  for (int i = 0; i < shape.d; ++i) data.push_back(rank_of({.tp = tp, .pp = pp, .dp = i}, shape));
  for (int i = 0; i < shape.p; ++i) pipeline.push_back(rank_of({.tp = tp, .pp = i, .dp = dp}, shape));
  for (int i = 0; i < shape.p * shape.t; ++i)
    model.push_back(rank_of({.tp = i % shape.t, .pp = i / shape.t, .dp = dp}, shape));
  mesh.tensor = world.split(tensor, "tensor", comm_of("tensor"));
  mesh.data = world.split(data, "data", comm_of("data"));
  mesh.pipeline = world.split(pipeline, "pipeline", comm_of("pipeline"));
  mesh.model = world.split(model, "model", shape.p > 1 ? comm_of("pipeline") : comm_of("tensor"));
  return mesh;
}

}  // namespace trivet
