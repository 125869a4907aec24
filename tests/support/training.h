// Small training runs for tests: a config, a dataset that is made once, and the losses of a run on thread ranks.
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

// Steps of the runs whose losses are compared: what one step leaves to the next, a wrong layout shows in the second or
// the third. A sanitizer makes them ten times as slow and looks for something that the first steps show.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kMatrixSteps = 2;
inline constexpr size_t kMatrixStride = 11;  // prime to the lengths of the lists that a matrix is made of
#else
inline constexpr int kMatrixSteps = 6;
inline constexpr size_t kMatrixStride = 1;
#endif

// The cases of a large matrix that run: every kMatrixStride-th.
template <class Case>
std::vector<Case> sampled(const std::vector<Case>& cases) {
  std::vector<Case> some;
  for (size_t n = 0; n < cases.size(); n += kMatrixStride) some.push_back(cases[n]);
  return some;
}

// 4 layers, h 32, 4 heads, s 16, a vocabulary of 61 (no multiple of anything), b 2, global batch 8, lr high enough that
// ten steps move the loss. Resolved.
Config tiny_config();

// Makes a small Llama of it: RMSNorm, rope, SwiGLU, no biases, 8 heads of 8 columns (wider than h) in 4 groups, untied.
void as_llama(Config& config);
// Likewise, with norms of queries and keys.
inline void as_qwen3(Config& config) {
  as_llama(config);
  config.model.qk_layernorm = true;
}
inline Config tiny_model(bool llama) {
  Config config = tiny_config();
  if (llama) as_llama(config);
  return config;
}
// The cases, with a GPT and then with a Llama.
template <class Case>
std::vector<Case> with_llama(const std::vector<Case>& cases) {
  std::vector<Case> both = cases;
  for (Case each : cases) {
    each.llama = true;
    both.push_back(each);
  }
  return both;
}

// Gives a key the value that a file would give it.
void set_key(Config& config, std::string_view key, std::string_view value);

// How a run is cut over ranks.
struct Cut {
  int t = 1, p = 1, d = 1;
  bool sequence_parallel = false;
  const char* schedule = "1f1b";
  int64_t v = 0;  // 0: what the schedule needs
  const char* strategy = "no_shard";
  int c = 1;
  CpCommType cp_comm_type = CpCommType::p2p;
  int ranks() const { return t * c * p * d; }
};
Config cut(Config config, const Cut& how);
inline void overlap_data_parallel(Config& config) {
  config.overlap.overlap_grad_reduce = config.overlap.overlap_param_gather = true;
}

// A case of a table of layouts.
struct LayoutCase {
  const char* name;
  Cut cut{};
  std::function<void(Config&)> set = [](Config&) {};  // what else
  int ranks() const { return cut.ranks(); }
};
void PrintTo(const LayoutCase& c, std::ostream* out);
// The tiny config as the case has it.
Config config_of(const LayoutCase& c);

// As a run of so many ranks takes it.
struct Resolved {
  Config config;
  Layout layout;
};
Resolved resolved(const Config& config, int ranks);

// Documents of random length over a vocabulary of 61 in which tokens follow one another with a pattern to be learned.
std::shared_ptr<const IndexedDataset> tiny_dataset();
inline constexpr int32_t kTinyEod = 9;  // ends documents, too, where a run tells them apart
std::string tiny_dataset_prefix();  // of its files
// Three steps on it by ranks that are threads, traced, as a run in a folder.
void run_traced(Config config, const std::string& run_dir, int ranks);

// Micro-batches of the tiny dataset, a fifth of which is for validation.
struct TinyData {
  TinyData(const Config& config, const BatchPlan& plan);
  const GptDataset train_data, valid_data;
  BatchLoader train, valid;
};

// A trainer on them. faults: as the command line has them.
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
// Hands one to `use` on each of so many thread ranks.
void with_trainers(const Config& config, int ranks, const std::function<void(Trainer&)>& use,
                   const Trainer::Options& options = {}, const std::vector<std::string>& faults = {});

// Mean loss per token over so many global batches: of `valid`, or of the tiny dataset's validation data.
double evaluate(Trainer& trainer, BatchSource& valid, int64_t batches);
double evaluate(Trainer& trainer, int64_t batches);

struct Curve {
  std::vector<double> losses, norms;  // of each step
  double validation_loss = 0;         // after the last
  uint64_t weights_hash = 0;          // of all this rank's weights, over ranks in order; thread ranks only
};

// What both saw is the same, bit by bit; the weights' hashes are not compared.
void expect_equal(const Curve& curve, const Curve& reference, const std::string& what = "");
// Losses within 2e-5 relative, and norms within ten times that: in fp32, where sums over ranks are taken in another
// order.
void expect_near(const Curve& curve, const Curve& reference, const std::string& what = "");

// Trains `steps` steps on `world`, the same result on every rank. ahead: each step is queued before the host reads the
// result of the one before.
Curve train(const Config& config, Communicator& world, int steps, const Trainer::Options& options, bool ahead = false);
// Likewise on thread ranks.
Curve train_on_threads(const Config& config, int ranks, int steps, const Trainer::Options& options, bool ahead = false);
inline Curve train(const Config& config, Communicator& world, int steps, bool poison_slots = false) {
  return train(config, world, steps, {.poison = poison_slots});
}
inline Curve train_on_threads(const Config& config, int ranks, int steps, bool poison_slots = false) {
  return train_on_threads(config, ranks, steps, {.poison = poison_slots});
}

// Ranks on devices whose memory the host cannot touch and whose streams wait to be waited for (split_device.h), which
// exchange it through host memory: what GPUs that are staged ask of the engine.
Backend make_split_backend(const Config& config, Communicator& world, int threads);
// The bytes of a tensor of that trainer, wherever it lies.
std::vector<std::byte> bytes_of(Trainer& trainer, Tensor tensor);

// What the streams of one rank recorded in a step.
struct TracedStep {
  std::vector<std::string> names;       // of the rows
  std::vector<std::vector<Span>> rows;  // in the order of the ends of their spans
  int64_t start_ns = 0, end_ns = 0;

  // The spans called `name` on the rows whose names begin with `row`.
  std::vector<Span> spans(const std::string& row, const std::string& name) const;
};
// The last of three steps on thread ranks, [rank].
std::vector<TracedStep> traced_steps(const Config& config, int ranks);

}  // namespace trivet::test
