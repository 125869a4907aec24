// TensorBoardLog: an observer of the run that writes TensorBoard event files with Megatron's tags. Each start of the
// program writes its own file, events.out.tfevents.SECONDS.HOST.PID. A resumed run removes from earlier files the steps
// that it will repeat, so that each step is shown once; a new run moves an earlier run's files to earlier-N, which
// TensorBoard shows as a run of that name. Format: TFRecord frames around Event messages (record_writer.h and
// event.proto in TensorFlow).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/sink_queue.h"
#include "engine/metrics/observer.h"

namespace trivet {

class TensorBoardLog : public RunObserver {
 public:
  // Throws IoError if the folder, or a file in it, cannot be created. `warn`: see AppendFile; called on any thread.
  TensorBoardLog(std::string folder, AppendFile::Warn warn);

  std::string begin(const RunBegin& run) override;
  void step(const StepReport& report) override;
  void evaluation(const EvalReport& report) override;
  void flush() override;

 private:
  using Scalars = std::vector<std::pair<std::string_view, double>>;  // (tag, value)
  void add(int64_t step, const Scalars& scalars);

  const std::string folder_;
  const AppendFile::Warn warn_;
  std::optional<SinkQueue> queue_;  // created by begin()
};

}  // namespace trivet
