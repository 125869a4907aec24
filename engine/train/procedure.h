// RunProcedure: directs a run by its own rules, as a benchmark does, instead of by the configuration alone: it decides
// after which steps to evaluate and when the run ends. A tool provides it (ToolSection); each rank has one and makes
// the same calls. To observe only, use RunObserver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trivet {

class Trainer;

class RunProcedure {
 public:
  virtual ~RunProcedure() = default;

  // Called when the engine is ready and before any training data is read; the run continues when it returns.
  // train_samples, eval_samples: sizes of the data sets; eval_labels: labels in the evaluation set. Collective.
  virtual void start(Trainer& trainer, int64_t train_samples, int64_t eval_samples, int64_t eval_labels) = 0;
  // True if an evaluation follows this step.
  virtual bool evaluates(int64_t step) const = 0;
  virtual void evaluation_begins() = 0;
  virtual void evaluation_ends(std::optional<double> loss) = 0;  // empty: it was interrupted
  virtual bool reached() const = 0;                              // true: the run's goal is reached, and the run ends
  // Called once, at the end. why: the reason, unless the goal was reached. Returns the outcome as text.
  virtual std::string stop(const std::string& why) = 0;
};

}  // namespace trivet
