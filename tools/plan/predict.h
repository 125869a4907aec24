// Predicts a run's speed and memory on a system: its tapes (rehearsal.h) are priced by the system spec (costs.h) and
// replayed (replay.h). The first step does not count, because it starts with idle ranks; each later step starts in the
// state that its predecessor left.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/metrics/step_report.h"
#include "engine/metrics/time_table.h"
#include "tools/plan/rehearsal.h"
#include "tools/plan/section.h"
#include "tools/plan/system.h"

namespace trivet {

class SystemCosts : public ReplayCosts {
 public:
  SystemCosts(const System& system, const PlanConfig& plan);
  int64_t work_ns(const TapeWork& work, bool in_graph) const override;
  CallCost call_cost(const TapeCall& call, const TapeGroups::Group& group) const override;
  int64_t host_ns(const TapeRecord& record) const override;
  double slowdown() const override { return system_.contention; }

 private:
  const System system_;
  const PlanConfig plan_;
  const int64_t launch_ns_;
};

// The peak that a run's MFU is measured against.
struct MfuPeak {
  const char* arithmetic = "";
  double tflops = 0;  // per rank
};

struct Prediction {
  MfuPeak peak = {};
  StepReport step = {};                 // speed, and a breakdown of all ranks' time
  std::vector<RankTime> ranks = {};     // one per player (replay.h)
  std::vector<MemoryItem> memory = {};  // of the rank that needs the most: engine's plan plus system's reserves
  int64_t memory_bytes = 0, capacity_bytes = 0;
  KnownLinks links = {};  // for the floors in `step` (step_stats.h)
  bool fits() const { return memory_bytes <= capacity_bytes; }
};

struct PredictOptions {
  std::string trace = {};             // path of a Perfetto trace of the last step; "": none
  std::vector<int> trace_ranks = {};  // ranks in the trace; empty: the first rank of each player
  std::string picture = {};           // path of an SVG of the pipeline ranks' passes in the last step; "": none
};

// Throws ConfigError if the spec cannot price the run's arithmetic.
void check_is_priced(const Config& config, const System& system);

// The tapes of all ranks; on GPUs, equal ranks are merged (merge_ranks()). Throws ConfigError like check_is_priced().
Rehearsal rehearse_on(const Config& config, const Layout& layout, const System& system);

// The costs of the run's operations on the system.
std::unique_ptr<ReplayCosts> costs_of(const Config& config, const Layout& layout, const System& system);

// Throws ConfigError, IoError.
Prediction predict(const Config& config, const Layout& layout, const System& system,
                   const PredictOptions& options = {});
// Only the seconds per step. costs: the system's, or a variant. REQUIRES: the rehearsal is from rehearse_on().
double predict_step_seconds(const Rehearsal& rehearsal, const ReplayCosts& costs);

std::vector<TextBlock> describe(const Prediction& prediction, const System& system);
nlohmann::ordered_json json_of(const Prediction& prediction, const System& system);

}  // namespace trivet
