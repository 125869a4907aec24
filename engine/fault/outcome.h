// RUN_DIR/outcome.json: how a run ended, for the script that restarts it. Unlike an exit code, it does not depend on
// mpirun or srun. If a rank died, exit_code is 128 plus the signal; a rank found dead without an outcome counts as
// killed (137), although its peers, which write the file, exit with 70.
//
//   {"status": "hung", "exit_code": 124, "root_cause_rank": 2, "host": "node7", "what": "rank 2 …", "step": 1200,
//    "last_committed_step": 1000}
#pragma once

#include <cstdint>
#include <string>

namespace trivet {

struct Outcome {
  std::string status;  // done | stopped (on request; saved if exit_code is 75) | hung | died | failed
  int exit_code = 0;
  int root_cause_rank = -1;  // -1: none, or unknown
  std::string host{};        // host of that rank
  std::string what{};        // one line
  int64_t step = 0;          // completed steps
};

// Removes an earlier outcome; called by rank 0 at the start of a run.
void clear_outcome(const std::string& run_dir);
// Writes atomically and durably. The first outcome of a run wins: returns false if one exists or this one cannot be
// written. Callable from any thread and process.
bool write_outcome(const std::string& run_dir, const Outcome& outcome) noexcept;

// The step of the checkpoint that RUN_DIR/checkpoints/latest names; -1: none.
int64_t last_committed_step(const std::string& run_dir) noexcept;

}  // namespace trivet
