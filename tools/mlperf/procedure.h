// MlperfRun: runs an MLPerf Training benchmark by the rules (training_rules.adoc). It drops the hosts' caches, warms up
// the engine on synthetic data, starts the clock on all ranks together, decides when to evaluate and when the target is
// reached, and writes RUN_DIR/mlperf.log on rank 0. Each rank creates an instance; all make the same calls.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/files.h"
#include "engine/config/load.h"
#include "engine/train/procedure.h"
#include "engine/train/trainer.h"
#include "tools/mlperf/run_log.h"
#include "tools/mlperf/section.h"

namespace trivet {

// The log's description of a run, from the engine that will execute it; the caller adds train_samples, eval_samples and
// config_filename. first_step: of the checkpoint that the run starts from.
mlperf::Description description_of(const Rank& rank, const Config& engine, const mlperf::Benchmark& benchmark,
                                   int64_t first_step);

// Runs `command` on one rank of each host; boot: the number of this rank's host (boot_number()). True if it succeeded
// on all hosts. Collective.
bool clear_caches(const std::string& command, HostWorld& host, int64_t boot);

class MlperfRun : public RunProcedure {
 public:
  // Call this before any initialisation: it runs mlperf.cache_clear once per host. Throws ConfigError if train.run_dir
  // holds the log or checkpoints of another run, or if the run does not start where the benchmark does. Collective.
  static std::unique_ptr<RunProcedure> begin(const LoadedConfig& loaded, bool from_checkpoint, Communicator& world);

  // Ends the initialisation phase once the engine is ready, and starts the clock. Reads no training data. A run from a
  // checkpoint also begins at the data's first sample; the checkpoint's samples count as steps of the run's batch size,
  // rounded up (init_checkpoint_step). *_samples: dataset sizes; eval_labels: labels in the validation set. Collective.
  void start(Trainer& trainer, int64_t train_samples, int64_t eval_samples, int64_t eval_labels) override;
  bool evaluates(int64_t step) const override {
    const int64_t done = step - first_step_;
    return done % interval_ == 0 && done / interval_ > skipped_;
  }
  void evaluation_begins() override { log_.eval_start(samples()); }
  void evaluation_ends(std::optional<double> loss) override;
  bool reached() const override { return reached_; }  // true once the target is reached
  // Throws IoError if the log is incomplete.
  std::string stop(const std::string& why) override;

 private:
  MlperfRun(const mlperf::Benchmark& benchmark, const LoadedConfig& loaded, Communicator& world);
  int64_t samples() const { return trainer_->consumed_samples(); }

  const Config& config_;
  const std::string config_file_;
  const mlperf::Benchmark benchmark_;
  const int64_t interval_, skipped_, batch_;
  std::optional<AppendFile> file_;  // on rank 0, once its folder exists
  std::string pending_;             // lines logged before file_ was opened
  mlperf::RunLog log_;
  Trainer* trainer_ = nullptr;  // null before start()
  int64_t first_step_ = 0;
  bool reached_ = false, stopped_ = false, lost_ = false;
};

}  // namespace trivet
