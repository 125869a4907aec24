// Checkpointing: what a run does about checkpoints, beside training: resumes from one, saves when it is due, and stops
// the run well. Each rank has one and makes the same calls.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/open_checkpoint.h"
#include "engine/checkpoint/saver.h"
#include "engine/fault/step_hook.h"
#include "engine/metrics/step_report.h"
#include "engine/train/trainer.h"
#include "engine/train/votes.h"

namespace trivet {

// Where the run tells what happens; empty but on rank 0.
struct CheckpointNews {
  std::function<void(const std::string& line)> note;
  std::function<void(int64_t step, const std::string& checkpoint)> resumed;
  std::function<void(const SaveReport&)> saved;
};

// The checkpoints that --resume means, in the order in which to try them; none: the run begins anew. how: "none";
// "auto": those of the run, the latest first; else the path of a checkpoint, of a folder of them or of a run. Throws
// ConfigError, and DataError where that one is not there or is of another model: before anything is allocated.
std::vector<std::string> checkpoints_to_resume(const std::string& how, const Config& config);

class Checkpointing {
 public:
  struct Options {
    std::string tokenizer;                  // fingerprint of the data's; empty: unknown
    std::function<int()> stop_signal;       // that has asked this process to stop; 0: none
    Disk::Fault disk_fault;                 // for tests and --inject
    StepHook* hook = nullptr;               // is told of each save; null: nobody
    std::function<void()> before_commit{};  // on rank 0; throws where the folder is no longer the run's
  };
  // Collective over the trainer's world. `start_ns`: of the run, for exit_duration_in_mins.
  Checkpointing(const Config& config, const Layout& layout, Trainer& trainer, CheckpointNews news, Options options,
                int64_t start_ns);

  // Collective. Goes on from the first candidate; where that cannot be read on some rank, from the next one if
  // `fall_back`. Throws DataError where there are candidates and none can be read.
  void resume(const std::vector<std::string>& candidates, bool fall_back);

  Votes votes();
  // Whether after_step() will save or end the run: then the step's result must be there before.
  bool needs_result(const Votes& sum) const;
  // At a step boundary, with the sums of all ranks' votes. False: the run has to end here; exit_code() says how.
  bool after_step(const Votes& sum);

  int exit_code() const { return exit_code_; }

 private:
  bool out_of_time(int64_t now) const;
  TrainState train_state() const;
  void begin();
  void advance(const SaveVote& sum);
  void wait();      // until no save is under way; collective
  void save_now();  // and wait
  void check_tokenizer(const OpenCheckpoint& checkpoint) const;
  void note_changes(const TrainState& state) const;

  const Config& config_;
  Trainer& trainer_;
  CheckpointNews news_;
  Options options_;
  std::optional<CheckpointSaver> saver_;  // empty: the run saves nothing
  int64_t all_bytes_ = 0;                 // of a checkpoint
  int64_t deadline_ns_;                   // steady clock; INT64_MAX: none
  int64_t boundary_ns_ = 0, longest_step_ns_ = 0, longest_save_ns_ = 0, begun_ns_ = 0;
  int64_t saved_step_ = -1;  // committed, or resumed from
  int64_t failures_ = 0;     // in a row
  std::string last_error_;
  int exit_code_ = 0;
};

}  // namespace trivet
