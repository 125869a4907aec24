// Mesh: the position of a rank among the ranks of a run (mesh_shape.h), and its groups.
#pragma once

#include <memory>
#include <string>

#include "parallel/comm/comm.h"
#include "parallel/mesh_shape.h"

namespace trivet {

// The groups of one rank, created eagerly and in the same order on every rank.
struct Mesh {
  MeshShape shape;
  MeshPosition at;
  std::unique_ptr<Communicator> tensor;    // over tp
  std::unique_ptr<Communicator> context;   // over cp
  std::unique_ptr<Communicator> data;      // over kGradientAxes
  std::unique_ptr<Communicator> pipeline;  // over pp, in stage order
  std::unique_ptr<Communicator> model;     // over kModelAxes: one whole model
};

// Collective over `world`. Throws Error when world.size() is not shape.world().
inline Mesh make_mesh(Communicator& world, const MeshShape& shape) {
  if (world.size() != shape.world())
    fail(fmt::format("the mesh has {} = {} ranks, the world has {}", sizes_text(shape), shape.world(), world.size()));
  Mesh mesh;
  mesh.shape = shape;
  mesh.at = position_of(world.rank(), shape);
  const auto group = [&](AxisSet axes, const char* name, Category category) {
    return world.split(group_members(mesh.at, shape, axes), name, category);
  };
  mesh.tensor = group({Axis::tp}, "tensor", comm_of("tensor"));
  mesh.context = group({Axis::cp}, "context", comm_of("context"));
  mesh.data = group(kGradientAxes, "data", comm_of("data"));
  mesh.pipeline = group({Axis::pp}, "pipeline", comm_of("pipeline"));
  mesh.model = group(kModelAxes, "model", shape[Axis::pp] > 1 ? comm_of("pipeline") : comm_of("tensor"));
  return mesh;
}

}  // namespace trivet
