// CheckpointStore: the folder of a run's checkpoints, and the steps in which a checkpoint becomes visible.
//
//   RUN_DIR/checkpoints/step-00001000/        committed
//                       step-00002000.tmp-…/  being written, or left over by a run that was killed
//                       latest                "step-00001000\n"
//
// A save: shards, fsync each; train_state.json, config, manifest.json, fsync each; fsync the step's folder; give it its
// final name; fsync its parent folder; `latest` by the same steps; only then are old checkpoints removed. So whenever
// a run is killed, every "step-…" without ".tmp" is complete, and a committed one stays. (An exception: a step saved a
// second time on a file system that cannot exchange two names; see commit().)
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
  int64_t last = 0;      // this many of the newest, including the new one; 0: all, and the next two are ignored
  int64_t interval = 0;  // those whose step is a multiple of this; 0: none
  int64_t best = 0;      // this many with the lowest validation losses
};

class CheckpointStore {
 public:
  CheckpointStore(std::string folder, Disk disk = {}) : folder_(std::move(folder)), disk_(std::move(disk)) {}

  // Committed steps, the newest first.
  std::vector<int64_t> steps() const;
  // The step that `latest` names, if committed. problem: receives what is wrong if `latest` names no committed step.
  std::optional<int64_t> latest(std::string* problem = nullptr) const;
  // If `latest` exists and names no committed step: what it names, and what is used instead. Else empty.
  std::string latest_problem() const;
  std::string path_of(int64_t step) const;
  std::string temporary_path_of(int64_t step, const std::string& run) const;

  // Makes the folder, whose parent must exist, and removes leftovers of killed runs; returns why one could not be
  // removed, or "". Called by one rank, while no save is in progress.
  std::string prepare() const;
  // Makes `temporary`, whose files are durable, the checkpoint of its step, and the latest one.
  void commit(int64_t step, const std::string& temporary) const;
  // After commit(): removes the replaced checkpoint, and earlier ones that are not to be kept. If it throws IoError,
  // the next commit or start tries again.
  void remove_old(int64_t step, const std::string& temporary, const Retention& keep) const;

  // All checkpoints in the order in which to try them: from `latest` back to the oldest, then those newer than
  // `latest`, which a run resumed from an earlier step has abandoned.
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
// it has no checkpoints.
void warn_on_stderr(const std::string& warning);
std::vector<std::string> find_checkpoints(std::string path,
                                          const std::function<void(const std::string&)>& warn = warn_on_stderr);

// Returns read(find()), where find() follows `latest`: a run that is still training may remove that checkpoint
// meanwhile. If reading fails and find() now returns a different one, reads that, a hundred times at most. Ranks that
// read together must get the same from find() and fail together. A read() that throws must have no lasting effect.
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

// The step of a directory called step-NNNNNNNN, eight digits or more.
std::optional<int64_t> step_of_name(std::string_view name);

}  // namespace trivet
