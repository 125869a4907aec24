// CheckpointStore: the folder of a run's checkpoints, and the protocol that commits a checkpoint.
//
//   RUN_DIR/checkpoints/step-00001000/        committed
//                       step-00002000.tmp-…/  being written, or left over from a killed run
//                       latest                "step-00001000\n"
//
// A save: write and fsync the shards; the same for train_state.json, config, manifest.json; fsync the step's folder;
// rename it to its final name; fsync its parent folder; update `latest` the same way; only then remove old checkpoints.
// So whenever a run is killed, every "step-…" without ".tmp" is complete, and committed ones survive. Exception: a step
// saved a second time on a file system that cannot exchange two names; see commit().
#pragma once

#include <concepts>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/checkpoint/disk.h"

namespace trivet {

// The checkpoints to keep when a newer one is committed.
struct Retention {
  int64_t last = 0;      // this many of the newest, including the new one; 0: all, and the next two members are ignored
  int64_t interval = 0;  // steps that are multiples of this; 0: none
  int64_t best = 0;      // this many with the lowest validation losses
};

class CheckpointStore {
 public:
  CheckpointStore(std::string folder, Disk disk = {}) : folder_(std::move(folder)), disk_(std::move(disk)) {}

  // Committed steps, newest first.
  std::vector<int64_t> steps() const;
  // The step that `latest` names, if committed. problem: receives the reason if `latest` names no committed step.
  std::optional<int64_t> latest(std::string* problem = nullptr) const;
  // If `latest` exists but names no committed step, a message that names the checkpoint used instead; else empty.
  std::string latest_problem() const;
  std::string path_of(int64_t step) const;
  std::string temporary_path_of(int64_t step, const std::string& run) const;

  // Creates the folder, whose parent must exist, and removes leftovers of killed runs; returns the reason if one could
  // not be removed, else "". Called by one rank, while no save is in progress.
  std::string prepare() const;
  // Commits `temporary`, whose files must be durable, as the checkpoint of `step`, and points `latest` to it.
  void commit(int64_t step, const std::string& temporary) const;
  // After commit(): removes the replaced checkpoint, and earlier ones that `keep` does not retain. If it throws
  // IoError, the next commit or start retries.
  void remove_old(int64_t step, const std::string& temporary, const Retention& keep) const;

  // All checkpoints in the order to try them: from `latest` back to the oldest, then those newer than `latest`, which a
  // run resumed from an earlier step has abandoned.
  std::vector<std::string> paths() const;

  const std::string& folder() const { return folder_; }
  const Disk& disk() const { return disk_; }

 private:
  std::vector<int64_t> with_lowest_losses(std::vector<int64_t> steps, int64_t most) const;

  std::string folder_;
  Disk disk_;
};

// The checkpoints at a user's path: the checkpoint itself, or those of a folder or run in the order of paths(). `warn`
// (may be null) is called if `latest` names no checkpoint. Throws ConfigError if the path does not exist, DataError if
// it contains no checkpoints.
void warn_on_stderr(const std::string& warning);
std::vector<std::string> find_checkpoints(std::string path,
                                          const std::function<void(const std::string&)>& warn = warn_on_stderr);

// Returns read(find()), where find() follows `latest`: a run that is still training may remove that checkpoint in the
// meantime. If reading fails and find() now returns a different one, reads that, up to 100 reads. Ranks that read
// together must get the same result from find() and fail together. A read() that throws must have no lasting effect.
template <std::invocable Find, class Read>
auto read_latest(Find&& find, Read&& read) {
  std::string found = find();
  for (int tries = 100;; --tries) {  // the same on all ranks, unlike a time limit
    try {
      return read(found);
    } catch (const Error&) {
      std::string now = found;
      try {
        if (tries > 1) now = find();
      } catch (const Error&) {  // the error of read() says more
      }
      if (now == found) throw;
      found = std::move(now);
    }
  }
}
template <class Read>
auto read_latest(const std::string& path, Read&& read,
                 const std::function<void(const std::string&)>& warn = warn_on_stderr) {
  return read_latest([&] { return find_checkpoints(path, warn).front(); }, read);
}

// The step of a directory named step-NNNNNNNN, with eight digits or more.
std::optional<int64_t> step_of_name(std::string_view name);

}  // namespace trivet
