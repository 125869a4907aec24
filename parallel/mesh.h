// Mesh: where a rank stands among the ranks of a run (mesh_shape.h), and its groups.
#pragma once

#include <memory>

#include "parallel/comm/comm.h"
#include "parallel/mesh_shape.h"

namespace trivet {

// The groups of one rank, created eagerly and in the same order on every rank.
struct Mesh {
  MeshShape shape;
  MeshPosition at;
  std::unique_ptr<Communicator> tensor;    // over tp
  std::unique_ptr<Communicator> data;      // over kGradientAxes
  std::unique_ptr<Communicator> pipeline;  // over pp, in stage order
  std::unique_ptr<Communicator> model;     // over kModelAxes: one whole model
};

// Collective over `world`. Throws Error when world.size() is not shape.world().
Mesh make_mesh(Communicator& world, const MeshShape& shape);

}  // namespace trivet
