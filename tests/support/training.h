// Small training runs for tests: a config, a dataset created once, and the losses of a run on thread ranks.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "engine/config/validate.h"
#include "engine/data/gpt_dataset.h"
#include "engine/train/trainer.h"

namespace trivet::test {

// Number of steps in runs whose losses are compared: state that a layout carries over wrongly shows in the second or
// the third. Sanitizers make steps ten times slower, and the errors that they detect occur in the first steps.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kMatrixSteps = 2;
inline constexpr size_t kMatrixStride = 11;  // coprime to the lengths of the lists that form a matrix
#else
inline constexpr int kMatrixSteps = 6;
inline constexpr size_t kMatrixStride = 1;
#endif

// The cases of a large matrix that are run: every kMatrixStride-th.
template <class Case>
std::vector<Case> sampled(const std::vector<Case>& cases) {
  std::vector<Case> some;
  for (size_t n = 0; n < cases.size(); n += kMatrixStride) some.push_back(cases[n]);
  return some;
}

// 4 layers, h 32, 4 heads, s 16, vocabulary 61 (a prime), b 2, global batch 8, a learning rate high enough that ten
// steps change the loss. Resolved.
Config tiny_config();

// Makes it a small Llama: RMSNorm, rope, SwiGLU, no biases, 8 heads of 8 columns (wider than h) in 4 groups, untied.
void as_llama(Config& config);
// The same Llama with query and key norms.
inline void as_qwen3(Config& config) {
  as_llama(config);
  config.model.qk_layernorm = true;
}
inline Config tiny_model(bool llama) {
  Config config = tiny_config();
  if (llama) as_llama(config);
  return config;
}
// The cases, first with a GPT, then with a Llama.
template <class Case>
std::vector<Case> with_llama(const std::vector<Case>& cases) {
  std::vector<Case> both = cases;
  for (Case each : cases) {
    each.llama = true;
    both.push_back(each);
  }
  return both;
}

// Sets a key as a configuration file would.
void set_key(Config& config, std::string_view key, std::string_view value);

// How a run is distributed over ranks.
struct Cut {
  int t = 1, p = 1, d = 1;
  bool sequence_parallel = false;
  const char* schedule = "1f1b";
  int64_t v = 0;  // 0: as the schedule requires
  const char* strategy = "no_shard";
  int c = 1;
  CpCommType cp_comm_type = CpCommType::p2p;
  int ranks() const { return t * c * p * d; }
};
Config cut(Config config, const Cut& how);
inline void overlap_data_parallel(Config& config) {
  config.overlap.overlap_grad_reduce = config.overlap.overlap_param_gather = true;
}

// A case in a table of layouts.
struct LayoutCase {
  const char* name;
  Cut cut{};
  std::function<void(Config&)> set = [](Config&) {};  // further settings
  int ranks() const { return cut.ranks(); }
};
void PrintTo(const LayoutCase& c, std::ostream* out);
// The tiny config with the case's settings.
Config config_of(const LayoutCase& c);

// The config and layout of a run on `ranks` ranks.
struct Resolved {
  Config config;
  Layout layout;
};
Resolved resolved(const Config& config, int ranks);

// Documents of random length over a vocabulary of 61, whose token sequences follow a learnable pattern.
std::shared_ptr<const IndexedDataset> tiny_dataset();
inline constexpr int32_t kTinyEod = 9;  // also ends documents if a run distinguishes them
std::string tiny_dataset_prefix();      // of the dataset's files
// Runs three traced steps on it with thread ranks, in a run folder.
void run_traced(Config config, const std::string& run_dir, int ranks);

// Micro-batches of the tiny dataset; a fifth of it is for validation.
struct TinyData {
  TinyData(const Config& config, const BatchPlan& plan);
  const GptDataset train_data, valid_data;
  BatchLoader train, valid;
};

// A trainer on these micro-batches. faults: as on the command line.
class TinyTrainer {
 public:
  TinyTrainer(const Config& config, Communicator& world, Trainer::Options options = {},
              const std::vector<std::string>& faults = {});
  Trainer& operator*() { return trainer_; }

 private:
  const Resolved run_;
  TinyData data_;
  FaultInjector faults_;
  Trainer trainer_;
};
// Passes a trainer to `use` on each of `ranks` thread ranks.
void with_trainers(const Config& config, int ranks, const std::function<void(Trainer&)>& use,
                   const Trainer::Options& options = {}, const std::vector<std::string>& faults = {});

// Mean loss per token over `batches` global batches of `valid`, or of the tiny dataset's validation data.
double evaluate(Trainer& trainer, BatchSource& valid, int64_t batches);
double evaluate(Trainer& trainer, int64_t batches);

struct Curve {
  std::vector<double> losses, norms;  // of each step
  double validation_loss = 0;         // after the last
  uint64_t weights_hash = 0;          // hash of all weights, rank by rank; thread ranks only
};

// Both curves are equal bit for bit; the weights' hashes are not compared.
void expect_equal(const Curve& curve, const Curve& reference, const std::string& what = "");
// Losses agree within a relative 2e-5, norms within ten times that: for fp32, if sums over ranks are in a different
// order.
void expect_near(const Curve& curve, const Curve& reference, const std::string& what = "");

// Trains `steps` steps on `world`; every rank returns the same result. ahead: each step is queued before the host reads
// the previous step's result.
Curve train(const Config& config, Communicator& world, int steps, const Trainer::Options& options, bool ahead = false);
// The same on thread ranks.
Curve train_on_threads(const Config& config, int ranks, int steps, const Trainer::Options& options, bool ahead = false);
inline Curve train(const Config& config, Communicator& world, int steps, bool poison_slots = false) {
  return train(config, world, steps, {.poison = poison_slots});
}
inline Curve train_on_threads(const Config& config, int ranks, int steps, bool poison_slots = false) {
  return train_on_threads(config, ranks, steps, {.poison = poison_slots});
}

// Ranks on devices whose memory the host cannot access and whose streams are lazy (split_device.h), which exchange data
// through host memory: what staged GPUs require of the engine.
Backend make_split_backend(const Config& config, Communicator& world, int threads);
// The bytes of one of that trainer's tensors, in host or device memory.
std::vector<std::byte> bytes_of(Trainer& trainer, Tensor tensor);

// What the streams of one rank recorded in a step.
struct TracedStep {
  std::vector<std::string> names;       // row names
  std::vector<std::vector<Span>> rows;  // spans ordered by their ends
  int64_t start_ns = 0, end_ns = 0;

  // The spans called `name` on the rows whose names begin with `row`.
  std::vector<Span> spans(const std::string& row, const std::string& name) const;
};
// The last of three steps on thread ranks, indexed by rank.
std::vector<TracedStep> traced_steps(const Config& config, int ranks);

}  // namespace trivet::test
