// Measured timelines: the work of a pipeline in each step of a run, from the run's trace.json, in the form of the
// simulator's prediction. So the two can be compared in one table or in one picture.
//
// An op lasts from the first to the last piece of work inside it (arithmetic and tensor-parallel communication):
// waiting for its input is the pipeline's, not the op's. A message lasts from the start of its send to the end of its
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

// All steps that `trace_path` holds in full, in their order. Throws IoError, and DataError if the file is no trace
// of such a schedule.
std::vector<MeasuredStep> read_measured_steps(const std::string& trace_path, const Schedule& schedule);

// Medians over the steps and micro-batches: what each op of each stage and what a message cost. `blocking`: as the run
// had it. REQUIRES: at least one step.
Costs measured_costs(const Schedule& schedule, std::span<const MeasuredStep> steps, bool blocking);

}  // namespace trivet
