// Measured timelines: a pipeline's work in each step of a run, read from the run's trace.json in the format of the
// simulator's prediction, so the two can be compared in one table or picture.
//
// An op lasts from the start of its first to the end of its last piece of work (arithmetic and tensor-parallel
// communication): the wait for its input counts as the pipeline's time, not the op's. A message lasts from the start of
// its send to the end of its receive.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/pipeline/simulate.h"

namespace trivet {

struct MeasuredStep {
  int64_t step = 0;
  Timeline timeline;  // in ms since the first op's start, for the replica with tensor and data rank 0
};

// All complete steps in `trace_path`, in order. Throws IoError, or DataError if the file is not a trace of this
// schedule.
std::vector<MeasuredStep> read_measured_steps(const std::string& trace_path, const Schedule& schedule);

// The costs of each stage's ops and of a message: medians over steps and micro-batches. `blocking`: as in the run.
// REQUIRES: at least one step.
Costs measured_costs(const Schedule& schedule, std::span<const MeasuredStep> steps, bool blocking);

}  // namespace trivet
