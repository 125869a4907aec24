// RunObserver: is told of a run's events, on rank 0: the console and metrics.jsonl are two. The Reporter has the list
// and calls each, in their order, between steps and in the thread that trains: work that may hang (a disk, a network)
// belongs in a SinkQueue.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/text.h"
#include "engine/metrics/step_report.h"

namespace trivet {

// The start of the run.
struct RunBegin {
  int64_t step = 0;              // done before
  std::string checkpoint = {};   // from which it resumes; empty: from new weights
  bool goes_on = false;          // in the folder of the run that wrote it, whose later records are done again
  bool evaluates_again = false;  // so is the evaluation of `step`
  int64_t total_steps = 0;
  int ranks = 1;
  std::string program = {};  // which version trains
  double start_seconds = 0;  // from the start of the process to here
  std::string banner = {};   // layout, memory, device and data, as text for people
  double peak_tflops = 0;    // of a rank, which MFU is measured against
  std::string peak_origin = {};
};

class RunObserver {
 public:
  virtual ~RunObserver() = default;
  // Returns what people should know of it; empty: nothing.
  virtual std::string begin(const RunBegin&) { return {}; }
  virtual void step(const StepReport&) {}
  virtual void evaluation(const EvalReport&) {}
  virtual void save(const SaveReport&) {}  // a checkpoint that is committed
  virtual void walltime(const WallTimeReport&) {}
  virtual void note(const std::string& /*line*/) {}  // anything else that people should read
  // The same, each as the record that metrics.jsonl gets of it.
  virtual void record(const nlohmann::ordered_json&) {}
  virtual void flush() {}  // writes all events to its file: a save is next, of steps that are on record then
  // All steps are done, or the run was asked to stop: where its time went.
  virtual void end(const std::vector<TextBlock>& /*times*/) {}
};

}  // namespace trivet
