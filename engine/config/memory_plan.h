// MemoryPlan: the bytes that one rank will hold, by purpose, before anything is allocated. Each item is the arena of
// that name, and equals its bytes() exactly.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/config/validate.h"

namespace trivet {

struct MemoryItem {
  std::string name;
  int64_t bytes = 0;
};

struct MemoryPlan {
  std::vector<MemoryItem> items;
  int64_t total() const;
};

// Elements of the flat buffers that hold this rank's parameters: each one starts at a multiple of kFlatAlignment, and
// so does the end.
constexpr int64_t kFlatAlignment = 64;
int64_t flat_elements(const ModelConfig& model, const Layout& layout);

// The items "weights" (in the run's dtype), "gradients" (fp32) and "optimizer" (two fp32 moments, and the fp32 main
// weights of a bf16 run). REQUIRES: a resolved config.
MemoryPlan plan_memory(const Config& config, const Layout& layout);

}  // namespace trivet
