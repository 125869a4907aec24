// The parts of trivet plan.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "engine/config/load.h"
#include "tools/plan/system.h"

namespace trivet {

// --score and --calibrate.
struct CalibrationOptions {
  std::vector<std::string> score, calibrate;  // files of rows (tools/plan/rows.h); only one is set
  bool wanted = false;                        // --calibrate; without files it measures this machine's CPUs
  std::string system;
  std::vector<std::string> system_sets;
  std::vector<std::string> fit;  // constants to fit, by key; empty: those that the runs determine
  std::string out, plot;         // output files: the fitted spec; a plot
  bool cross_validate = false, json = false;
};
void add_calibration_options(CLI::App& command, CalibrationOptions& options);
void score_or_calibrate(const CalibrationOptions& options);

// --search: the fastest layouts of a run, and the best one as a YAML file.
struct PlanSearch {
  bool wanted = false;
  std::string out = "plan_best.yaml";
  std::string study;  // "": none
  double seconds = 600;
};
// Adds --search and its options. Returns --search.
CLI::Option* add_search_options(CLI::App& command, PlanSearch& search);
// Searches, prints, and writes the best layout. run: unresolved. links: the file's `comm`, written with that layout.
void run_search(const PlanSearch& search, const LoadedConfig& run, const CommConfig& links, int ranks,
                const System& system, bool json);

}  // namespace trivet
