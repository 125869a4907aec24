// Measured timelines: the work of a pipeline in each step of a run, from the run's trace.json, in the form of the
// simulator's prediction, so the two can be compared in one table or picture.
//
// An op lasts from the first to the last piece of work inside it (arithmetic and tensor-parallel communication): the
// wait for its input is the pipeline's time, not the op's. A message lasts from the start of its send to the end of its
// receive.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/pipeline/simulate.h"

namespace trivet {

struct MeasuredStep {
  int64_t step = 0;
  Timeline timeline;  // in ms since the first op's start; of the replica with tensor and data rank 0
};

// All steps that `trace_path` holds in full, in their order. Throws IoError, and DataError if the file is not a trace
// of such a schedule.
std::vector<MeasuredStep> read_measured_steps(const std::string& trace_path, const Schedule& schedule);

// Medians over the steps and micro-batches: the costs of each stage's ops and of a message. `blocking`: as in the run.
// REQUIRES: at least one step.
Costs measured_costs(const Schedule& schedule, std::span<const MeasuredStep> steps, bool blocking);

}  // namespace trivet
