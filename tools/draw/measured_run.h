// A finished run's pipeline and its simulation: the schedule from RUN_DIR/config.resolved.yaml, the steps from
// RUN_DIR/trace.json (train.trace: true), and the simulation with the costs measured in these steps.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/draw/measured.h"

namespace trivet {

struct MeasuredRun {
  Schedule schedule;
  std::vector<MeasuredStep> steps;  // without the first, a warm-up
  Costs costs;
  Timeline measured, simulated;
};

// step: the step to show; empty: the one with the median makespan. Throws IoError, DataError, and ConfigError if the
// run, its pipeline or the step does not exist.
MeasuredRun read_measured_run(const std::string& run_dir, std::optional<int64_t> step = {});

}  // namespace trivet
