// explain: a Markdown page that describes a run as one rank sees it: its groups, its part of the model, one layer's
// operations in queueing order, and a step's communication, FLOPs, memory and schedule. All numbers come from the
// engine: its layout, memory plan and accounting, and the tape that the planner records of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/config/load.h"
#include "tools/draw/step_timeline.h"
#include "tools/plan/tape.h"

namespace trivet {

// An op, or a call of a communicator: either `work` or `call` is null. Pointers are into the tape and its groups.
struct Queued {
  const TapeWork* work = nullptr;
  const TapeCall* call = nullptr;
  const TapeGroups::Group* group = nullptr;  // of the call
  SpanLabel label = {};
  std::string_view pass = {};    // the compute stream's pass when this was queued: F, B, I, W or recompute; "": none
  std::string_view stream = {};  // its name in a trace
  // As counted in metrics.jsonl, where a message counts only at its receiver.
  int64_t wire_bytes() const { return call && !call->sends ? call->cost.bytes : 0; }
};

struct RecordedStep {
  Tape tape;
  TapeGroups groups;
  std::vector<Queued> queued;

  // The entries for one micro-batch in one unit of the model (ParamList::units), including streamed weights and grads.
  std::vector<Queued> of_unit(int unit, int microbatch) const;
};

// Records the second step, which all later ones repeat. CUDA graphs are disabled: they run the same operations, but
// label all of them with the graph's launch. REQUIRES: all steps have the same size (check_is_planned).
RecordedStep record_step(const Config& config, const Layout& layout, int rank);

struct Explained {
  std::string page;     // Markdown
  std::string picture;  // SVG of the layer and of the step's communication
};
// loaded, layout: resolved. Throws ConfigError if the rank does not exist, or like check_is_planned(). measured: null,
// or the timeline of this rank in a step of the same run, whose times the page then includes.
Explained explain(const LoadedConfig& loaded, const Layout& layout, int rank, const StepTimeline* measured = nullptr);

}  // namespace trivet
