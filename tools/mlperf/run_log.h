// RunLog: writes the log of an MLPerf Training run in the order that the compliance checker of mlperf_logging 4.1.68
// requires:
//
//   cache_clear, init_start, submission_…, seed, global_batch_size, opt_…, …, init_stop, run_start,
//   [block_start, block_stop, eval_start, eval_accuracy, eval_stop]*, run_stop
//
// Independent of the engine: values and clock are passed in.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "tools/mlperf/log.h"
#include "tools/mlperf/rules.h"

namespace trivet::mlperf {

// An object: the values of events, by key, in the order of the log.
using Description = nlohmann::ordered_json;

class RunLog {
 public:
  using Write = std::function<void(const std::string& line)>;
  using Clock = std::function<int64_t()>;  // milliseconds since 1970
  using Where = std::source_location;

  // `benchmark` supplies the name and the units; `write` gets each line with its newline.
  RunLog(Benchmark benchmark, Write write, Clock clock);

  // Marks the start of the initialisation. cleared: true if caches were dropped before it.
  void start(const Description& submission, bool cleared);
  void describe(const Description& run);  // with max_sequence_length
  void run_start();
  // Resumes training until an evaluation or the end. samples: seen by the run so far, excluding its checkpoint's.
  void block_start(int64_t samples, int64_t length);
  void eval_start(int64_t samples);
  void eval_accuracy(int64_t samples, double loss);
  void eval_stop(int64_t samples);
  // Call exactly once. reason: why the run was aborted; empty if it reached the target.
  void run_stop(int64_t samples, const std::string& reason);

 private:
  using Json = nlohmann::json;
  void put(EventType type, const std::string& key, const Json& value, Json metadata, const Where& where);
  void event(const std::string& key, const Json& value, const Where& where = Where::current());
  Json position(int64_t samples) const;
  void block_stop(int64_t samples);  // no-op if no block is open

  const Benchmark benchmark_;
  const Write write_;
  const Clock clock_;
  int64_t sequence_length_ = 0;
  std::optional<int64_t> block_;  // the samples at which the open block began
};

}  // namespace trivet::mlperf
