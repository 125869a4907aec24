// MetricsLog: RUN_DIR/metrics.jsonl, one JSON object a line: a step, or an evaluation ("event": "eval"). Floats have
// all the digits that read back exactly; what is unknown or no number is null. Appended to, so that a resumed run goes
// on in the same file. Written by rank 0; every line is in the file when the call returns.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/files.h"
#include "engine/metrics/step_report.h"

namespace trivet {

class MetricsLog {
 public:
  // Throws IoError when the file cannot be opened. `warn` is called once, at the first line that cannot be written.
  MetricsLog(std::string path, AppendFile::Warn warn);

  void step(const StepReport& report);
  void eval(const EvalReport& report);
  void resume(int64_t step, const std::string& checkpoint);
  void save(const SaveReport& report);

 private:
  void append(const nlohmann::ordered_json& line);

  AppendFile file_;
};

}  // namespace trivet
