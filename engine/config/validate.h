// Validation: does a loaded configuration make a run? check_config judges what the configuration alone tells;
// resolve() also knows the ranks and the dataset, fills in every derived value and returns the layout.
//
// Both report all problems at once, each with the numbers that disagree and values that would work. Nothing that was
// asked for is turned off silently: a switch that cannot apply is a problem.
#pragma once

#include <optional>

#include "engine/config/load.h"
#include "engine/config/problems.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/schedule.h"

namespace trivet {

// What resolve() has to know beside the configuration.
struct RunFacts {
  int world_size = 1;
  std::optional<int64_t> dataset_vocab_size = {};  // the tokenizer's, where there is a dataset
};

// What a run can have at most, so that products of sizes stay numbers.
constexpr int kMostRanks = 1'000'000;

// How a resolved configuration is laid out on its ranks.
struct Layout {
  MeshShape mesh;
  int64_t micro_batches = 1;                  // m: passes of one data-parallel rank in a step
  Schedule schedule;                          // of those micro-batches on the pipeline ranks, checked
  std::vector<int64_t> layers_of_stage = {};  // [p * v]
  int64_t padded_vocab = 0;  // vocab_size up to a multiple of make_vocab_size_divisible_by * t, as Megatron does
};

void check_config(const LoadedConfig& loaded, Problems& problems);

// After it, every optional of `loaded.config` has a value, with the origin `derived`, but device.peak_tflops (which
// only the device can tell) and what the layout says instead: how layers are split, and the group of an interleaved
// schedule. Throws ConfigError.
Layout resolve(LoadedConfig& loaded, const RunFacts& facts);

// The fewest ranks that can hold one whole model: t p.
int ranks_of_one_replica(const Config& config);

}  // namespace trivet
