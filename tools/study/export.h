// Export of a study as tidy data (H. Wickham, 2014): one CSV file, a row a run and step, a column a variable. For R,
// pandas, and whoever wants to do the statistics again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/study/results.h"
#include "tools/study/study.h"

namespace trivet {

// Columns: study, point (id), round, call, outcome, reason, started, run_seconds, those of kProvenance, a column a
// factor with the label of its level, step (from 1), measured (yes, or no in the warm-up), and every number in any
// run's metrics.jsonl, empty if a run lacks it. All runs of results.jsonl are there: one that failed with the
// steps it made, or, as one whose folder is gone or a later run's, with one row without a step. Returns the number of
// rows. Throws IoError, and DataError for a metrics.jsonl that cannot be read.
int64_t export_steps(const Study& study, const std::vector<RunRow>& runs, const std::string& path);

}  // namespace trivet
