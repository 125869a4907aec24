// trivet plan --search: the fastest layouts of a run, and the best one as a YAML file.
#pragma once

#include <string>

#include "engine/config/load.h"
#include "engine/plan/system.h"

namespace trivet {

struct PlanSearchOptions {
  bool search = false;
  std::string out = "plan_best.yaml";
  double seconds = 600;
};

// run: not resolved. `given`: as it was before what belongs to the emulation of links was left out; the file has it.
void print_search(const LoadedConfig& run, const CommConfig& given, int ranks, const System& system,
                  const PlanSearchOptions& options, bool json);

}  // namespace trivet
