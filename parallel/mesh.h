// Mesh: where a rank stands in the grid of tensor (t) x data (d) x pipeline (p) parallel ranks, and its groups.
//
// order "tp-dp-pp" (Megatron's default): consecutive ranks are tensor-parallel peers, then data-, then pipeline-
// parallel: rank = tp + t * (dp + d * pp). "tp-pp-dp": rank = tp + t * (pp + p * dp).
#pragma once

#include <memory>
#include <vector>

#include "parallel/comm/comm.h"

namespace trivet {

enum class RankOrder { tp_dp_pp, tp_pp_dp };

struct MeshShape {
  int t = 1, p = 1, d = 1;
  RankOrder order = RankOrder::tp_dp_pp;
  int world() const { return t * p * d; }
};

struct MeshPosition {
  int tp = 0, pp = 0, dp = 0;
  bool operator==(const MeshPosition&) const = default;
};

MeshPosition position_of(int rank, const MeshShape& shape);
int rank_of(const MeshPosition& position, const MeshShape& shape);

// The groups of one rank, created eagerly and in the same order on every rank.
struct Mesh {
  MeshShape shape;
  MeshPosition at;
  std::unique_ptr<Communicator> tensor;    // the t ranks with equal (pp, dp)
  std::unique_ptr<Communicator> data;      // the d ranks with equal (tp, pp)
  std::unique_ptr<Communicator> pipeline;  // the p ranks with equal (tp, dp), in stage order
  std::unique_ptr<Communicator> model;     // the t * p ranks with equal dp: one whole model
};

// Collective over `world`. Throws Error when world.size() is not shape.world().
Mesh make_mesh(Communicator& world, const MeshShape& shape);

}  // namespace trivet
