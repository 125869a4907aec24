// Exports a study as tidy data (H. Wickham, 2014): one CSV file, one row per run per step, one column per variable. For
// R, pandas, and anyone who wants to redo the statistics.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/study/results.h"
#include "tools/study/study.h"

namespace trivet {

// Columns: study, point (id), round, call, outcome, reason, started, run_seconds, those of kProvenance, each factor
// with its level's label, step (from 1), measured (yes, or no during warm-up), and every numeric key in any run's
// metrics.jsonl, empty if a run lacks it. All runs in results.jsonl are exported: a failed run with the steps it
// completed; a run without steps, or whose folder is gone or was reused by a later run, as one row without a step.
// Returns the number of rows. Throws IoError, or DataError if a metrics.jsonl cannot be parsed.
int64_t export_steps(const Study& study, const std::vector<RunRow>& runs, const std::string& path);

}  // namespace trivet
