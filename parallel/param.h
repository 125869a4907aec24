// Param: one weight of the model as this rank holds it. Layers declare their parameters while they are built; the
// flat buffer gives them memory; the initialisation, the optimizer and the checkpoint know them by name.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "parallel/placed.h"

namespace trivet {

// How a weight starts; see engine/model/init.h for what the numbers mean under every layout.
struct Init {
  enum Kind { zeros, ones, normal } kind = zeros;
  float std = 0;  // of `normal`
};

// The weight that the first and last pipeline stage share where embeddings are tied.
inline constexpr const char* kSharedEmbedding = "embedding.word_embeddings.weight";

// What a layer declares. The name, global shape and initial values are the same under every layout.
struct ParamSpec {
  std::string name;    // e.g. "decoder.layers.3.mlp.fc1.weight"
  Shape global_shape;  // whole model
  int cut_dim = -1;    // dimension that tensor parallelism cuts into equal contiguous parts; -1: replicated
  Init init{};
  bool weight_decay = true;  // false for biases and norms
  // How what it is added to or multiplied with stands. ParamList derives from it over whom gradients are summed.
  Place used_on = Place::whole;
  // A copy of a weight that another pipeline stage declares too (tied embeddings): its gradients are summed over both,
  // and the norm counts it there.
  bool shared_copy = false;
  // Rows of global_shape[0] from this one on are padding (vocabulary): initialised to zero, never trained. -1: none.
  int64_t padding_from = -1;
  // Who adds to its gradient asks Param::take_overwrite(), and so nobody has to zero it first.
  bool first_one_writes = false;
};

struct Param {
  ParamSpec spec;
  int unit = 0;            // that declared it
  Shape shape;             // of this rank's part
  int64_t cut_offset = 0;  // first index of this rank's part along cut_dim
  Tensor weight;           // shape, model dtype; a view of the flat weight buffer
  Tensor grad;             // shape, fp32; a view of the flat gradient buffer
  // Of the copies that tensor-parallel ranks and stages hold of it, the one that the norm counts and checkpoints keep.
  bool first_copy = true;
  // It is replicated, but each tensor-parallel rank computes the gradient of its own part only: the gradients have to
  // be summed over the tensor group.
  bool sum_over_tensor_group = false;
  // Where spec.first_one_writes: `grad` is that of an earlier step, or of another parameter that was there.
  bool overwrite = false;

  // Whether the caller is to write all of `grad`, rather than add to it. The next one then adds.
  bool take_overwrite() { return std::exchange(overwrite, false); }
};

// Parameters of a stage that are used together: its embedding, a block, its head.
struct ParamUnit {
  int stage = 0;                      // of this rank, in the order of their declaration
  const Param* shared_use = nullptr;  // the weight of another unit of this rank that this one uses too
};

// All parameters of a rank in the order of the forward pass; addresses stay valid.
class ParamList {
 public:
  ParamList(int tensor_rank, int tensor_size, bool sequence_parallel = false)
      : tensor_rank_(tensor_rank), tensor_size_(tensor_size), sequence_parallel_(sequence_parallel) {}

  // The parameters declared from now on make up a unit. Returns its number, from 0 in the order of declaration.
  int begin_unit(int stage) {
    units_.push_back({stage});
    return static_cast<int>(units_.size()) - 1;
  }
  // The unit under way also uses `weight` and adds to its gradient.
  void share(const Param& weight) { units_.back().shared_use = &weight; }
  const std::vector<ParamUnit>& units() const { return units_; }

  // Throws ConfigError when the cut dimension does not divide by the tensor parallel size.
  Param& declare(ParamSpec spec) {
    Param param;
    param.spec = std::move(spec);
    param.shape = param.spec.global_shape;
    check(!units_.empty(), "a parameter is declared outside of any unit");
    param.unit = static_cast<int>(units_.size()) - 1;
    param.first_copy = !param.spec.shared_copy && (param.spec.cut_dim >= 0 || tensor_rank_ == 0);
    param.sum_over_tensor_group = param.spec.cut_dim < 0 && differs(param.spec.used_on);
    if (const int dim = param.spec.cut_dim; dim >= 0) {
      const int64_t n = param.shape[dim];
      if (n % tensor_size_ != 0)
        throw ConfigError(param.spec.name + ": dimension " + std::to_string(dim) + " (" + std::to_string(n) +
                          ") is not divisible by the tensor-parallel size (" + std::to_string(tensor_size_) + ")");
      param.shape.dims[static_cast<size_t>(dim)] = n / tensor_size_;
      param.cut_offset = n / tensor_size_ * tensor_rank_;
    }
    return params_.emplace_back(std::move(param));
  }
  // Whether a replicated parameter meets another part of the activations on each tensor-parallel rank.
  bool differs(Place used_on) const {
    return used_on == Place::hidden || used_on == Place::vocab || (used_on == Place::residual && sequence_parallel_);
  }
  std::deque<Param>& all() { return params_; }
  const std::deque<Param>& all() const { return params_; }

 private:
  int tensor_rank_, tensor_size_;
  bool sequence_parallel_;
  std::deque<Param> params_;
  std::vector<ParamUnit> units_;
};

}  // namespace trivet
