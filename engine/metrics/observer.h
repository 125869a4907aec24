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
  int64_t step = 0;              // steps done before this start
  std::string checkpoint = {};   // the checkpoint that the run resumes from; empty: new weights
  bool goes_on = false;          // resumes in the checkpoint's own run folder; later records are rewritten
  bool evaluates_again = false;  // the evaluation after `step` is repeated, too
  int64_t total_steps = 0;
  int ranks = 1;
  std::string program = {};  // the program's version
  double start_seconds = 0;  // since process start
  std::string banner = {};   // layout, memory, device and data, human-readable
  double peak_tflops = 0;    // per rank, the denominator of MFU
  std::string peak_origin = {};
};

class RunObserver {
 public:
  virtual ~RunObserver() = default;
  // Returns a note for the user; empty: none.
  virtual std::string begin(const RunBegin&) { return {}; }
  virtual void step(const StepReport&) {}
  virtual void evaluation(const EvalReport&) {}
  virtual void save(const SaveReport&) {}  // a checkpoint was committed
  virtual void walltime(const WallTimeReport&) {}
  virtual void note(const std::string& /*line*/) {}  // any other message for the user
  // Receives the same events as records of metrics.jsonl.
  virtual void record(const nlohmann::ordered_json&) {}
  virtual void flush() {}  // called before a save: all events go to the file, so that saved steps are on record
  // All steps are done, or the run was asked to stop. times: the breakdown of the run's time.
  virtual void end(const std::vector<TextBlock>& /*times*/) {}
};

}  // namespace trivet
