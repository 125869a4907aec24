// Shared by the tests of planned runs.
#pragma once

#include "tests/support/training.h"
#include "tests/support/where.h"
#include "tools/plan/planned_run.h"

namespace trivet::test {

inline System h100(const std::vector<std::string>& sets = {}) {
  return load_system("h100-sxm", sets, source_path("configs/systems"));
}

// The tiny model in bf16, as a file would specify it, with the values in `sets`.
inline LoadedConfig tiny_run(const std::vector<std::string>& sets = {}) {
  Config config = tiny_config();
  set_key(config, "precision.dtype", "bf16");
  return with_sets({.config = config, .origins = {}, .path = "run.yaml", .trains = false}, sets);
}

}  // namespace trivet::test
