// trivet plan --search: the fastest layouts of a run, and the best one as a YAML file.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "engine/config/load.h"
#include "tools/plan/system.h"

namespace trivet {

struct PlanSearch {
  bool wanted = false;
  std::string out = "plan_best.yaml";
  double seconds = 600;
};

// Adds --search and what goes with it. Returns --search.
CLI::Option* add_search_options(CLI::App& command, PlanSearch& search);

// Searches, prints, and writes the best one. run: not resolved. links: of the file, which the run is planned without.
void run_search(const PlanSearch& search, const LoadedConfig& run, const CommConfig& links, int ranks,
                const System& system, bool json);

}  // namespace trivet
