// MetricsLog: RUN_DIR/metrics.jsonl, one JSON object per line: a step, or an event ("event": start, resume, eval,
// checkpoint, walltime, note, end). Each includes the time, in seconds since the epoch. Floats are printed with enough
// digits to be read back exactly; unknown values and NaN are null. The file holds one run, each step once: a resumed
// run appends to it, and a new one sets it aside. Written by rank 0 through a queue, because a disk may hang.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/sink_queue.h"
#include "engine/metrics/observer.h"

namespace trivet {

// The names of the numeric fields in a step's record, except "step".
std::vector<std::string> step_metric_names();

// Calls each(numbers) for every step on record with all its numeric fields, including "step" (from 1) and "loss" (NaN
// if absent); calls event(record) for any other object. Skips an incomplete last line, which is still being written.
// most_bytes: reads steps only from this many bytes at the file's end. Returns a problem with the file, or "".
using StepNumbers = std::map<std::string, double>;
std::string for_each_step(const std::string& path, const std::function<void(StepNumbers numbers)>& each,
                          const std::function<void(const nlohmann::ordered_json& record)>& event = {},
                          int64_t most_bytes = INT64_MAX);
// Fields of a record; NaN or "" if absent.
double number_in(const nlohmann::ordered_json& record, const char* key);
std::string text_in(const nlohmann::ordered_json& record, const char* key);

// Renames an earlier run's NAME.EXT to NAME.1.EXT, or to the next free number. Returns the new name; empty: the file
// did not exist or was empty. Throws IoError.
std::string set_aside(const std::string& file);

class MetricsLog : public RunObserver {
 public:
  // Throws IoError if the file cannot be opened. `warn`: see AppendFile; called on any thread. `patience_s`: see
  // SinkQueue. `hear`: also receives each record.
  using Hear = std::function<void(const nlohmann::ordered_json& record)>;
  MetricsLog(std::string path, AppendFile::Warn warn, double patience_s = 0, Hear hear = nullptr);
  ~MetricsLog() override;

  // A run that does not continue the file sets it aside and returns a note with its new name. A run that continues it
  // first removes, atomically, the records that it will write again; if that fails, it calls `warn` and leaves them.
  std::string begin(const RunBegin& run) override;
  void step(const StepReport& report) override;
  void evaluation(const EvalReport& report) override;
  void save(const SaveReport& report) override;
  void walltime(const WallTimeReport& report) override;
  void note(const std::string& line) override;
  void end(const std::vector<TextBlock>& times) override;
  void flush() override { queue_->drain(); }  // afterwards the lines are in the file, unless writes fail

 private:
  void open();
  std::string remove_redone(const RunBegin& run);
  void append(const nlohmann::ordered_json& line);

  std::string path_;
  AppendFile::Warn warn_;
  double patience_s_;
  Hear hear_;
  std::optional<SinkQueue> queue_;
  int64_t step_ = 0;  // the last step seen
  bool begun_ = false;
  std::vector<std::string> early_notes_;
};

}  // namespace trivet
