// `trivet train` on each rank, from a loaded config to the last step. Rank 0 prints, and writes RUN_DIR/metrics.jsonl
// and RUN_DIR/config.resolved.yaml; with train.trace every rank writes its part of RUN_DIR/trace.json.
#pragma once

#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/disk.h"
#include "engine/config/load.h"
#include "engine/config/validate.h"
#include "engine/fault/inject.h"
#include "engine/train/backend.h"
#include "engine/train/generate.h"
#include "parallel/comm/comm.h"

namespace trivet {

struct RunOptions {
  // The prompt of the sample generated after each evaluation and after training; "": a new document; none: no sample.
  std::optional<std::string> prompt{};
  Sampling sampling{.tokens = 80};     // of samples; the stop token is the tokenizer's
  std::string resume = "auto";         // auto | none | a path: see checkpoints_to_resume()
  std::function<int()> stop_signal{};  // the signal that asked this process to stop; 0: none
  std::string program{};               // the program's version, for the records
  Disk::Fault disk_fault{};            // in checkpoint writes
  std::vector<Fault> faults{};         // to inject
  MakeBackend make_backend = trivet::make_backend;
};

// The facts for resolve(), including the data's vocabulary. Throws DataError.
RunFacts facts_of(const Config& config, int world_size);

// Resolves `loaded` for this world, opens the data, trains. Collective over `world`, with equal arguments. Throws
// ConfigError, DataError, IoError before anything is allocated or written, NumericsError while training. Rank 0 prints
// to `out`. Returns the program's exit code: 0 when finished, 75 when the run was asked to stop and has been saved.
int run_training(LoadedConfig loaded, const RunOptions& options, Communicator& world, std::ostream& out);

}  // namespace trivet
