// StepTimeline: one step of a run, per rank, from its trace: what each rank computed and, below that, each call of its
// communicators: when its input was ready, when its stream issued it, when it was on the wire, and when it completed.
// Rendered as a table and as a picture.
//
// A call is exposed while it is on the wire and its rank computes nothing.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "engine/metrics/trace_file.h"

namespace trivet {

// Calls drawn in one row: those for one bucket's gradients or weights, on one pipeline channel, or in one group.
struct TimelineLane {
  std::string name, comm_class;    // "gradients b3"; one of kCommClasses
  std::string layer;               // of the bucket; "" if the calls are for several layers
  std::vector<TraceSpan> calls{};  // sorted by start
};

struct RankTimeline {
  int rank = 0;
  std::string name;
  std::vector<TraceSpan> ops{};     // ops of the pipeline schedule, named F, B, I or W
  std::vector<TraceSpan> layers{};  // a layer's work up to a visible gap, under its name; and the optimizer's
  std::vector<Interval> computed{};
  int64_t quantising_ns = 0;          // time in FP8 quantisation passes
  std::vector<TimelineLane> lanes{};  // tensor, pipeline, data; buckets in order
};

struct StepTimeline {
  int64_t step = 0;
  Interval window;  // from the end of the previous step (if none, from a rank's first work) to the end of this one
  std::vector<RankTimeline> ranks{};

  std::vector<Interval> exposed(const RankTimeline& rank, const TraceSpan& call) const {
    return gaps(rank.computed, call.wire.cut_to(window));
  }
};

// The wanted step; if empty, the one of median length, not counting step 1, a warm-up. lengths: by step. Throws
// ConfigError if the trace has no such step.
int64_t choose_step(const std::string& trace_path, std::map<int64_t, double> lengths, std::optional<int64_t> wanted);

// step: if empty, the step with the median window, not counting the first. ranks: if empty, the first rank of each
// pipeline stage. Throws IoError, DataError, and ConfigError if the trace has no such step or rank.
StepTimeline read_step_timeline(const std::string& trace_path, std::optional<int64_t> step = {},
                                const std::vector<int64_t>& ranks = {});

// One row per lane, in milliseconds from the start of the window. ready, called: of the lane's first call; done: of its
// last. exposed: only the part within the window, as calls may begin before it.
TextBlock table_of(const StepTimeline& timeline);

std::string render_svg(const StepTimeline& timeline);  // light and dark

}  // namespace trivet
