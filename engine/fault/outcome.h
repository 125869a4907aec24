// RUN_DIR/outcome.json: how a run ended, for whoever restarts it. An exit code that passes through mpirun or srun is
// not to be relied on; this file is.
//
//   {"status": "hung", "exit_code": 124, "root_cause_rank": 2, "host": "node7", "what": "rank 2 …", "step": 1200,
//    "last_committed_step": 1000}
#pragma once

#include <cstdint>
#include <string>

namespace trivet {

struct Outcome {
  std::string status;  // done | stopped (as asked; saved, if the exit code is 75) | hung | died | failed
  int exit_code = 0;
  int root_cause_rank = -1;  // -1: none, or unknown
  std::string host{};        // of that rank
  std::string what{};        // one line
  int64_t step = 0;          // steps done
};

// At the start of a run, by rank 0: there is no outcome yet.
void clear_outcome(const std::string& run_dir);
// Appears whole or not at all, and is durable. The first of a run counts: false where there is one already, or where it
// cannot be written. Any thread and process may call it.
bool write_outcome(const std::string& run_dir, const Outcome& outcome) noexcept;

// The step of the checkpoint that RUN_DIR/checkpoints/latest names; -1: none.
int64_t last_committed_step(const std::string& run_dir) noexcept;

}  // namespace trivet
