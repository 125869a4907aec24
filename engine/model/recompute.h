// Activation recompute (Chen et al. 2016; selective: Korthikanti et al. 2022, section 5): which activations of a stage
// are recomputed in the backward pass instead of saved. Configured as in Megatron: recompute_granularity,
// recompute_modules, recompute_method, recompute_num_layers. Results stay bitwise the same: the same operations run on
// the same inputs, and dropout is a function of sample and position.
#pragma once

#include <cstdint>
#include <vector>

namespace trivet {

// The parts of a block's forward pass in order (block.h), or the activations that they write.
struct BlockParts {
  bool norms = false;           // ln1, ln2
  bool qkv = false;             // qkv, its norms and rope
  bool core_attention = false;  // attention_out and its lse
  bool middle = false;          // proj, and the residual stream between the branches
  bool mlp = false;             // fc1 and the activation
  bool out = false;             // fc2, and the block's output

  static constexpr BlockParts all() { return {true, true, true, true, true, true}; }
  bool any() const { return norms || qkv || core_attention || middle || mlp || out; }
  BlockParts others() const { return {!norms, !qkv, !core_attention, !middle, !mlp, !out}; }
};

// Consecutive blocks of a stage. The backward pass of the group first recomputes `parts` from the group's input.
struct RecomputeGroup {
  int64_t first = 0, count = 1;  // blocks of the stage
  BlockParts parts;              // in each block; the output of the last one is always saved
};

struct Recompute {
  BlockParts parts;        // selective: in every block; full: all()
  bool uniform = true;     // full: groups of num_layers blocks, which save only their input; false: each of the first
                           // num_layers blocks of a stage is a group, and the rest save everything
  int64_t num_layers = 0;  // 0: granularity none or selective

  std::vector<RecomputeGroup> groups(int64_t blocks) const;
};

inline std::vector<RecomputeGroup> Recompute::groups(int64_t blocks) const {
  std::vector<RecomputeGroup> groups;
  const int64_t step = uniform && num_layers > 0 ? num_layers : 1;
  for (int64_t first = 0; first < blocks; first += step) {
    const bool saved = !uniform && first >= num_layers;
    groups.push_back({first, step < blocks - first ? step : blocks - first, saved ? BlockParts{} : parts});
  }
  return groups;
}

}  // namespace trivet
