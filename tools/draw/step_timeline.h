// StepTimeline: what ranks did in one step of a run, from its trace: what each computed, and under it each call of its
// communicators from when its input was ready, over when its stream called it and when it was on the wire, to when it
// was done. As a table and as a picture.
//
// A call is exposed where it is on the wire while its rank computes nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "engine/metrics/trace_file.h"

namespace trivet {

// Calls that are drawn in one row: those on one bucket's gradients or weights, of a pipeline channel, or of a group.
struct TimelineLane {
  std::string name, comm_class;    // "gradients b3"; one of kCommClasses
  std::string layer;               // of the bucket; "" if the calls are for several
  std::vector<TraceSpan> calls{};  // in the order of their starts
};

struct RankTimeline {
  int rank = 0;
  std::string name;
  std::vector<TraceSpan> ops{};     // of the pipeline's program: named F, B, I or W
  std::vector<TraceSpan> layers{};  // the work of a layer up to a visible break, under its name; and the optimizer's
  std::vector<Interval> computed{};
  int64_t quantising_ns = 0;          // FP8's passes over operands
  std::vector<TimelineLane> lanes{};  // tensor, pipeline, data; buckets in order
};

struct StepTimeline {
  int64_t step = 0;
  Interval window;  // from the last of the step before (without one: the first work of a rank) to the last of this
  std::vector<RankTimeline> ranks{};

  std::vector<Interval> exposed(const RankTimeline& rank, const TraceSpan& call) const {
    return gaps(rank.computed, call.wire.cut_to(window));
  }
};

// step: without one, the step whose window is the median, without the first. ranks: none means the first of each
// pipeline stage. Throws IoError, DataError, and ConfigError if the trace has no such step or rank.
StepTimeline read_step_timeline(const std::string& trace_path, std::optional<int64_t> step = {},
                                const std::vector<int64_t>& ranks = {});

// A row a lane; milliseconds from the window's begin. ready, called: of its first call; done: of its last. exposed: in
// the window, in which calls may not have begun.
TextBlock table_of(const StepTimeline& timeline);

std::string render_svg(const StepTimeline& timeline);  // light and dark

}  // namespace trivet
