// Turns a loaded configuration into a run. check_config checks the configuration by itself; resolve() also knows
// the ranks and the dataset, fills in every derived value and returns the layout. Both report all problems together:
// those of single values (fields.h), then those of values together (rules.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/batch_sizes.h"
#include "engine/config/load.h"
#include "engine/model/spec.h"
#include "parallel/pipeline/schedule.h"

namespace trivet {

// The maximum number of ranks of a run, so that products of sizes fit in 63 bits.
constexpr int kMostRanks = 1'000'000;

struct RunFacts {
  int world_size = 1;
  std::optional<int64_t> dataset_vocab_size = {};  // the tokenizer's, if there is a dataset
  bool has_dataset = true;                         // at least one of its files
};

// The smallest mesh that holds a whole model: the axes whose sizes are keys. dp follows from the world size.
inline MeshShape replica_mesh(const Config& config) {
  const ParallelConfig& c = config.parallel;
  return MeshShape({{Axis::tp, c.tensor_model_parallel_size},
                    {Axis::cp, c.context_parallel_size},
                    {Axis::pp, c.pipeline_model_parallel_size}},
                   c.order);
}
inline int ranks_of_one_replica(const Config& config) { return replica_mesh(config).world(); }
// Megatron's rule for data-parallel size d: a ring's chunk, bucket / d, must stay long enough to use the bandwidth.
inline int64_t default_bucket_size(int64_t d) { return std::max<int64_t>(40'000'000, 1'000'000 * d); }

// The layout of a resolved configuration on its ranks.
struct Layout {
  MeshShape mesh;
  int64_t micro_batches = 1;                  // m: per data-parallel rank and step, for the largest batch
  Schedule schedule;                          // for those micro-batches on the pipeline ranks; checked
  BatchSizes batch_sizes;                     // per step
  std::map<int64_t, Schedule> smaller = {};   // schedules of steps with smaller batches, by m
  int channel_depth = 0;                      // safe_channel_depth() of the schedules
  std::vector<int64_t> layers_of_stage = {};  // [p * v]
  int64_t padded_vocab = 0;  // vocab_size rounded up to a multiple of make_vocab_size_divisible_by * t, as in Megatron
  std::vector<std::string> notes = {};  // values that were left out, and why, for the user

  template <class Use>
  void each_schedule(const Use& use) const {
    use(schedule);
    for (const auto& [m, of_smaller] : smaller) use(of_smaller);
  }
  const Schedule& schedule_of(int64_t m) const { return m == micro_batches ? schedule : smaller.at(m); }
};

// The number of samples in all steps, as a double because it may exceed 63 bits.
inline double samples_of_run(const Config& config, const Layout& layout) {
  const int64_t steps = config.train.train_iters;
  return layout.smaller.empty() ? static_cast<double>(*config.batch.global_batch_size) * static_cast<double>(steps)
                                : static_cast<double>(layout.batch_sizes.samples_of(steps));
}

// The batch sizes of a run. full: the size of the largest batch, if the configuration does not give it.
BatchSizes batch_sizes_of(const Config& config, int64_t full);

void check_config(const LoadedConfig& loaded, Problems& problems);

// Afterwards, every empty optional of `loaded.config` that can be derived holds a value of origin `derived`, and values
// without effect for a reason outside the file (rules.h) are reset to their defaults. The split of layers and the group
// size of an interleaved schedule are in the layout; what only the run can choose stays empty. Throws ConfigError.
Layout resolve(LoadedConfig& loaded, const RunFacts& facts);

struct Field;  // fields.h

struct LayerSplit {
  int64_t num_layers = 0;
  int stages = 1;                            // p * v
  int chunks = 1;                            // interleaved: v; splits the next two over a rank's chunks, as in Megatron
  std::optional<int64_t> first_layers = {};  // of the first stage or rank, if different
  std::optional<int64_t> last_layers = {};   // of the last stage or rank, if different
  bool account_for_embedding = false;        // the embedding counts as a layer of the first stage
  bool account_for_loss = false;             // the head counts as a layer of the last stage
};

// Layers of each stage, [stages]. REQUIRES: first_layers or last_layers are not combined with account_for_…, nor with
// one pipeline rank. Throws a KeyError that says which values conflict and what would work.
std::vector<int64_t> split_layers(const LayerSplit& split);

// The width of the MLP, given or derived: a gated MLP is sized to match an ungated one's weight count.
int64_t ffn_of(const ModelConfig& config);
// The model that a configuration describes. A vocabulary that is not derived yet counts as 0.
ModelSpec model_spec_of(const ModelConfig& config);
// The number of rows of a rank's micro-batch whose logits coexist in memory; 0: all (GptShape::cross_entropy_rows).
int64_t cross_entropy_rows_of(const Config& config, const Layout& layout);
// The keys whose values in `other` would make `config` a different model (ModelSpec::same_model).
std::vector<const Field*> keys_of_another_model(const Config& config, const Config& other);

// The bytes that one rank holds, by purpose: one item per arena.
struct MemoryItem {
  std::string name;
  int64_t bytes = 0;
  bool on_host = false;  // even if the rank computes on a GPU
  bool operator==(const MemoryItem&) const = default;
};

struct MemoryPlan {
  std::vector<MemoryItem> items;
  int64_t total() const {
    int64_t sum = 0;
    for (const MemoryItem& item : items) sum += item.bytes;
    return sum;
  }
  int64_t on_device() const {
    int64_t sum = 0;
    for (const MemoryItem& item : items) sum += item.on_host ? 0 : item.bytes;
    return sum;
  }
};

}  // namespace trivet
