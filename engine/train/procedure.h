// RunProcedure: directs a run by its own rules, as a benchmark does, where run_training only follows the
// configuration: it decides which evaluations are made and when the run ends. A tool brings it (ToolSection); each rank
// has one and makes the same calls. A mere listener is a RunObserver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trivet {

class Trainer;

class RunProcedure {
 public:
  virtual ~RunProcedure() = default;

  // The engine is ready, and no training data have been read; the run continues after it. train_samples, eval_samples:
  // of the data sets; eval_labels: in the latter. Collective.
  virtual void start(Trainer& trainer, int64_t train_samples, int64_t eval_samples, int64_t eval_labels) = 0;
  // True if an evaluation follows this step.
  virtual bool evaluates(int64_t step) const = 0;
  virtual void evaluation_begins() = 0;
  virtual void evaluation_ends(std::optional<double> loss) = 0;  // none: it was interrupted
  virtual bool reached() const = 0;                              // the run's aim, so that it ends
  // Once, at the end. why: it ended before its aim was reached. Returns what came out, for people.
  virtual std::string stop(const std::string& why) = 0;
};

}  // namespace trivet
