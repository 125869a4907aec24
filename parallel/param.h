// Param: one weight of the model as this rank holds it. Layers declare their parameters when they are constructed; the
// flat buffer allocates their memory; initialisation, optimizer and checkpoint refer to them by name.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/scale_blocks.h"
#include "parallel/mesh_shape.h"
#include "parallel/placed.h"

namespace trivet {

// Initial values; see engine/model/init.h.
struct Init {
  enum Kind { zeros, ones, normal } kind = zeros;
  float std = 0;  // for `normal`
};

// A layer's declaration. The name, global shape and initial values are the same in every layout.
struct ParamSpec {
  std::string name;    // e.g. "decoder.layers.3.mlp.fc1.weight"
  Shape global_shape;  // whole model
  // Per axis, e.g. {{Axis::tp, partitioned(0)}}; kAxes sets the defaults. Partitions are equal, contiguous slices along
  // one dimension. Partial on pp: another stage declares the same weight (tied embeddings).
  Placements placement{};
  Init init{};
  bool weight_decay = true;   // false for biases and norms
  bool decoupled_lr = false;  // uses its own learning rate: word embeddings and output layer
  // The Place of the activation that the weight multiplies or is added to. It tells ParamList whether a weight that
  // every tensor rank holds in full is replicated or partial.
  Place used_on = Place::whole;
  // Rows of global_shape[0] from this row on are padding (vocabulary): initialised to zero, never trained. -1: none.
  int64_t padding_from = -1;
  // The gradient is overwritten on first use (Param::take_overwrite()), so it is never zeroed.
  bool overwrite_on_first_use = false;
  bool quantised = false;         // GEMMs read it in FP8
  bool scaled_by_blocks = false;  // with one scale per 128 x 128 block
};

// A parameter as a matrix: three dimensions are flattened to [first, rest]; a vector stays a vector.
inline Shape as_matrix(const Shape& shape) {
  return shape.rank < 3 ? shape : Shape{shape[0], shape.numel() / shape[0]};
}

struct Param {
  ParamSpec spec;
  int unit = 0;                  // the unit that declared it
  Shape shape;                   // this rank's part
  int partition_dim = -1;        // dimension along which it is partitioned; -1: none
  int64_t partition_offset = 0;  // first index of this rank's part
  AxisSet summed_over;           // the axes over which the gradient is summed, besides kGradientAxes
  Tensor weight;                 // shape, model dtype; a view of the flat weight buffer
  Tensor grad;                   // shape, fp32; a view of the flat gradient buffer
  bool first_copy = true;        // among the ranks of one model: counted in the norm, and stored in checkpoints
  bool overwrite = false;        // if spec.overwrite_on_first_use: `grad` holds stale values
  // If spec.quantised and the whole weight is stored: its FP8 copy, refreshed once per step, and the fp32 scales.
  Tensor fp8, fp8_scale;
  bool fp8_is_current = false;
  // In a fused pair [2, n, k] each matrix has its own blocks.
  Shape fp8_scale_shape() const {
    if (!spec.scaled_by_blocks) return {1};
    return {shape.rank == 3 ? shape[0] : 1, ScaleBlocks::count(shape[-2]), ScaleBlocks::count(shape[-1])};
  }

  // Where this rank's part begins in the whole parameter as a matrix; for a vector, the row is 0.
  int64_t first_row() const { return by_rows() ? partition_offset : 0; }
  int64_t first_column() const {
    return partition_dim < 0 || by_rows() ? 0 : partition_offset * (as_matrix(shape)[-1] / shape[partition_dim]);
  }
  // True: the caller must overwrite all of `grad`; the next caller adds to it.
  bool take_overwrite() { return std::exchange(overwrite, false); }

 private:
  bool by_rows() const { return partition_dim == 0 && shape.rank > 1; }
};

// Parameters of a stage that are used together: its embedding, a block, its head.
struct ParamUnit {
  int stage = 0;                      // index among this rank's stages, in declaration order
  std::string name{};                 // "layer 3", numbered over the whole model from 0
  const Param* shared_use = nullptr;  // another unit's weight, on this rank, that this unit uses too
};

// All parameters of a rank, in the order of the forward pass; their addresses stay valid.
class ParamList {
 public:
  explicit ParamList(const MeshShape& mesh = {}, const MeshPosition& at = {}, bool sequence_parallel = false)
      : mesh_(mesh), at_(at), sequence_parallel_(sequence_parallel) {}

  // Begins a unit: the parameters declared from now on belong to it. Returns its index, in declaration order.
  int begin_unit(int stage, std::string name = {}) {
    units_.push_back({stage, std::move(name)});
    return static_cast<int>(units_.size()) - 1;
  }
  // The current unit also uses `weight` and adds to its gradient.
  void share(const Param& weight) { units_.back().shared_use = &weight; }
  const std::vector<ParamUnit>& units() const { return units_; }

  // Throws ConfigError if a partitioned dimension is not divisible by the size of its axis.
  Param& declare(ParamSpec spec) {
    Param param;
    param.spec = std::move(spec);
    param.shape = param.spec.global_shape;
    check(!units_.empty(), "a parameter is declared outside of any unit");
    param.unit = static_cast<int>(units_.size()) - 1;
    for (const AxisInfo& row : kAxes) {
      const Placement placement = placement_of(param.spec, row.axis);
      if (kGradientAxes.has(row.axis)) {
        check(placement.kind == Placement::partial, param.spec.name + " is not partial on " + std::string(row.name));
      } else if (placement.kind == Placement::partitioned) {
        if (placement.dim >= 0) partition(param, row, placement.dim);
      } else {
        if (placement.kind == Placement::partial) param.summed_over.add(row.axis);
        if (at_[row.axis] != 0) param.first_copy = false;
      }
    }
    return params_.emplace_back(std::move(param));
  }
  std::deque<Param>& all() { return params_; }
  const std::deque<Param>& all() const { return params_; }

 private:
  // A parameter that tensor-parallel ranks use on different parts of the activations is partial.
  Placement placement_of(const ParamSpec& spec, Axis axis) const {
    const Place place = spec.used_on;
    const bool differ =
        place == Place::hidden || place == Place::vocab || (place == Place::residual && sequence_parallel_);
    const Placement said = spec.placement[axis];
    return axis == Axis::tp && said.kind == Placement::replicated && differ ? kPartial : said;
  }
  void partition(Param& param, const AxisInfo& axis, int dim) const {
    const int64_t n = param.shape[dim], ranks = mesh_[axis.axis];
    check(param.partition_dim < 0 || param.partition_dim == dim,
          param.spec.name + " is partitioned along two dimensions");
    if (n % ranks != 0)
      throw ConfigError(param.spec.name + ": dimension " + std::to_string(dim) + " (" + std::to_string(n) +
                        ") is not divisible by the " + axis.group + "-parallel size (" + std::to_string(ranks) + ")");
    param.partition_dim = dim;
    param.shape.dims[static_cast<size_t>(dim)] = n / ranks;
    param.partition_offset += n / ranks * at_[axis.axis];
  }

  MeshShape mesh_;
  MeshPosition at_;
  bool sequence_parallel_;
  std::deque<Param> params_;
  std::vector<ParamUnit> units_;
};

}  // namespace trivet
