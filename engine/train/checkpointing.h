// Checkpointing: resumes a run from a checkpoint, saves when one is due, and stops the run in an orderly way. Each rank
// has one and makes the same calls.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/mirror.h"
#include "engine/checkpoint/saver.h"
#include "engine/fault/inject.h"
#include "engine/fault/run_directory.h"
#include "engine/train/reporter.h"
#include "engine/train/resume.h"
#include "engine/train/trainer.h"

namespace trivet {

class Checkpointing {
 public:
  struct Options {
    std::string tokenizer;                      // fingerprint of the data's tokenizer; empty: unknown
    std::map<std::string, std::string> data{};  // TrainingData::identities
    std::function<int()> stop_signal;           // the signal that asked this process to stop; 0: none
    Disk::Fault disk_fault;                     // for tests and --inject
    FaultInjector* faults = nullptr;            // null: none
    const RunDirectory* folder = nullptr;       // on rank 0, to check that it is still this run's; null: unchecked
  };
  // Collective over the trainer's world. `reporter` (null: none) receives the events. `start_ns`: the run's start, for
  // exit_duration_in_mins.
  Checkpointing(const Config& config, const Layout& layout, Trainer& trainer, Reporter* reporter, Options options,
                int64_t start_ns);

  // Collective. Resumes from the first candidate that all ranks can read; without `fall_back` only the first is tried.
  // `candidates`: one per line, the same on all ranks. Throws DataError if there are any but none can be read.
  void resume(const std::string& candidates, bool fall_back);

  Votes votes();
  // Called between two batches of an evaluation: adds the ranks' current votes to `sum`. True: the evaluation must end
  // here, as the run will in after_step(sum). Collective.
  bool interrupts_evaluation(Votes& sum);
  // True if the evaluation after the last step is still due. Saved, so a resumed run begins with that evaluation.
  bool evaluation_due() const { return evaluation_due_; }
  void set_evaluation_due(bool due) { evaluation_due_ = due; }
  // The validation loss after the last step; saved with that step.
  void set_validation_loss(double loss) { evaluated_step_ = trainer_.steps_done(), validation_loss_ = loss; }
  // True if after_step() will save or end the run, and so needs the step's result first.
  bool needs_result(const Votes& sum) const;
  // Called at a step boundary, with the sums of all ranks' votes. False: the run ends here, with exit_code(). Throws
  // ConfigError if train.run_dir is no longer the run's; if it was deleted or replaced, the state is first saved next
  // to it.
  bool after_step(const Votes& sum);

  int exit_code() const { return exit_code_; }

 private:
  Votes stop_votes();
  bool out_of_time(int64_t now) const;
  bool exits_here() const;  // train.exit_interval
  void pass_boundary();
  void await_mirror();
  void update_stop_texts(int64_t done, int64_t committed);  // any thread; the largest step over all calls counts
  [[noreturn]] void leave_folder();
  std::string why_not_saved() const;  // REQUIRES: no saver
  std::string save_beside();
  TrainState train_state() const;
  void begin();
  SaveEvent finish_save();  // waits for the save in progress, if any, and returns its outcome; collective
  void conclude(SaveEvent event);
  void save_due_step();
  void note(const std::string& line);

  const Config& config_;
  Trainer& trainer_;
  Reporter* const reporter_;
  Options options_;
  std::mutex stop_texts_;
  int64_t done_ = 0, committed_ = 0;        // for the stop messages
  std::optional<CheckpointMirror> mirror_;  // on rank 0
  std::optional<CheckpointSaver> saver_;    // empty: the run saves nothing
  int64_t all_bytes_ = 0;                   // of a checkpoint, over all ranks
  int64_t deadline_ns_;                     // steady clock; INT64_MAX: none
  int64_t boundary_ns_ = 0, longest_step_ns_ = 0, longest_save_ns_ = 0, begun_ns_ = 0, looked_ns_ = 0;
  int64_t saved_step_ = -1;  // committed, or resumed from
  int64_t resumed_step_ = 0, evaluated_step_ = -1;
  std::optional<double> validation_loss_;
  int64_t failures_ = 0;  // consecutive
  std::string last_error_;
  bool evaluation_due_ = false, saved_as_due_ = false;  // now; as saved in the checkpoint of saved_step_
  int exit_code_ = 0;
};

}  // namespace trivet
