// Prediction: the output of a run on a system: its tapes (rehearsal.h), priced by the system's page (costs.h) and
// played (replay.h). The steps that count are the last ones recorded, in which each step begins where the one before
// left its ranks.
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
  double tflops = 0;  // of a rank
};

struct Prediction {
  MfuPeak peak = {};
  StepReport step = {};                 // speed and where the time of all ranks went
  std::vector<RankTime> ranks = {};     // one of each kind
  std::vector<MemoryItem> memory = {};  // of the rank that holds most: the engine's plan, and the system's reserves
  int64_t memory_bytes = 0, capacity_bytes = 0;
  KnownLinks links = {};  // of the floors
  int tapes = 0;
  int64_t records = 0;  // played
  bool fits() const { return memory_bytes <= capacity_bytes; }
};

struct PredictOptions {
  std::string trace = {};             // a Perfetto file of the last step; "": none
  std::vector<int> trace_ranks = {};  // of these ranks; none: of a rank of each kind
  std::string picture = {};           // an SVG of the passes of the pipeline's ranks in the last step; "": none
};

// Throws ConfigError if the page lacks a rate that the run needs.
void check_is_priced(const Config& config, const System& system);

// The tapes of all ranks, merged for the nodes of a system. Throws ConfigError as check_is_priced().
Rehearsal rehearse_on(const Config& config, const Layout& layout, const System& system);

// The costs of their operations there.
std::unique_ptr<ReplayCosts> costs_of(const Config& config, const Layout& layout, const System& system);

// Throws ConfigError, IoError.
Prediction predict(const Config& config, const Layout& layout, const System& system,
                   const PredictOptions& options = {});
// The seconds of a step alone. costs: the system's, or some of them changed. REQUIRES: the rehearsal is merged.
double predict_step_seconds(const Rehearsal& rehearsal, const ReplayCosts& costs);

std::vector<TextBlock> describe(const Prediction& prediction, const System& system);
nlohmann::ordered_json json_of(const Prediction& prediction, const System& system);
std::string to_json(const Prediction& prediction, const System& system);

}  // namespace trivet
