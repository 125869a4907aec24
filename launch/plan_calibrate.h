// trivet plan --score and --calibrate.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace trivet {

struct CalibrationOptions {
  std::vector<std::string> score, calibrate;  // files of rows (tools/plan/rows.h); one of the two
  bool wanted = false;                        // --calibrate; without files it measures this machine's CPUs
  std::string system;
  std::vector<std::string> system_sets;
  std::vector<std::string> fit;  // keys of constants; empty: those that runs tell
  std::string out, plot;         // the fitted page; a picture
  bool cross_validate = false, json = false;
};
void add_calibration_options(CLI::App& command, CalibrationOptions& options);
void score_or_calibrate(const CalibrationOptions& options);

}  // namespace trivet
