// What resolve() makes of a configuration, and what it has to know beside it.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "engine/config/config.h"
#include "parallel/pipeline/schedule.h"

namespace trivet {

// What a run can have at most, so that products of sizes stay numbers.
constexpr int kMostRanks = 1'000'000;

struct RunFacts {
  int world_size = 1;
  std::optional<int64_t> dataset_vocab_size = {};  // the tokenizer's, where there is a dataset
};

// The fewest ranks that can hold one whole model: t p.
inline int ranks_of_one_replica(const Config& config) {
  return config.parallel.tensor_model_parallel_size * config.parallel.pipeline_model_parallel_size;
}
// Megatron's rule for data-parallel size d: a ring's chunk, bucket / d, must stay long enough to use the bandwidth.
inline int64_t default_bucket_size(int64_t d) { return std::max<int64_t>(40'000'000, 1'000'000 * d); }

// How a resolved configuration is laid out on its ranks.
struct Layout {
  MeshShape mesh;
  int64_t micro_batches = 1;                  // m: passes of one data-parallel rank in a step
  Schedule schedule;                          // of those micro-batches on the pipeline ranks, checked
  int channel_depth = 0;                      // safe_channel_depth() of the schedule
  std::vector<int64_t> layers_of_stage = {};  // [p * v]
  int64_t padded_vocab = 0;  // vocab_size up to a multiple of make_vocab_size_divisible_by * t, as Megatron does
};

}  // namespace trivet
