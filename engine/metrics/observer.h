// RunObserver: receives a run's events, on rank 0; the console and metrics.jsonl are two observers. The Reporter calls
// each, in list order, between steps and on the training thread: work that may hang (a disk, a network) belongs in a
// SinkQueue.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/text.h"
#include "engine/metrics/step_report.h"

namespace trivet {

// The start of the run.
struct RunBegin {
  int64_t step = 0;              // steps done before
  std::string checkpoint = {};   // it resumes from this one; empty: new weights
  bool goes_on = false;          // resumes in the folder of the run that wrote it; later records are written again
  bool evaluates_again = false;  // the evaluation after `step` is repeated, too
  int64_t total_steps = 0;
  int ranks = 1;
  std::string program = {};  // the version that trains
  double start_seconds = 0;  // from process start to here
  std::string banner = {};   // layout, memory, device and data, as text for people
  double peak_tflops = 0;    // per rank, the denominator of MFU
  std::string peak_origin = {};
};

class RunObserver {
 public:
  virtual ~RunObserver() = default;
  // Returns a note for people; empty: none.
  virtual std::string begin(const RunBegin&) { return {}; }
  virtual void step(const StepReport&) {}
  virtual void evaluation(const EvalReport&) {}
  virtual void save(const SaveReport&) {}  // a checkpoint was committed
  virtual void walltime(const WallTimeReport&) {}
  virtual void note(const std::string& /*line*/) {}  // anything else that people should read
  // The same events, each as its record in metrics.jsonl.
  virtual void record(const nlohmann::ordered_json&) {}
  virtual void flush() {}  // writes all events to its file before a save, so that saved steps are on record
  // All steps are done, or the run was asked to stop. times: where the run's time went.
  virtual void end(const std::vector<TextBlock>& /*times*/) {}
};

}  // namespace trivet
