// CheckpointStore: the folder of a run's checkpoints, and the order in which one becomes visible.
//
//   RUN_DIR/checkpoints/step-00001000/        committed
//                       step-00002000.tmp-…/  being written, or left over by a run that was killed
//                       latest                "step-00001000\n"
//
// A save: shards, fsync each; train_state.json, config, manifest.json, fsync each; fsync the folder of the step; rename
// it to its name; fsync the folder above; `latest` by the same steps; only then are old ones removed. So at whatever
// point a run is killed, every name that begins with "step-" and has no ".tmp" is whole, and one that was committed
// stays. (But where a step is saved a second time on a file system that cannot exchange two names: see commit().)
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/disk.h"

namespace trivet {

class CheckpointStore {
 public:
  CheckpointStore(std::string folder, Disk disk = {}) : folder_(std::move(folder)), disk_(std::move(disk)) {}

  // Committed steps, the newest first.
  std::vector<int64_t> steps() const;
  // What `latest` names, if that is a committed step.
  std::optional<int64_t> latest() const;
  std::string path_of(int64_t step) const;
  std::string temporary_path_of(int64_t step, const std::string& run) const;

  // Makes the folder, and removes what killed runs have left: what cannot be removed stays, and is said. For one rank,
  // while nobody saves.
  std::string prepare() const;
  // Makes `temporary`, whose files are written and synchronised, the checkpoint of its step, and the latest one.
  void commit(int64_t step, const std::string& temporary) const;
  // After that: removes what it replaced, and all but the last `keep_last` (0: keeps all). What cannot be removed takes
  // nothing from the commit; it is tried again after the next one, or at the next start.
  void remove_old(int64_t step, const std::string& temporary, int64_t keep_last) const;

  // All of them, the one that `latest` names first, then those before it, from the newest on. Steps beyond it come
  // last: a run that was begun again from further back has given them up.
  std::vector<std::string> paths() const;

  const std::string& folder() const { return folder_; }
  const Disk& disk() const { return disk_; }

 private:
  std::string folder_;
  Disk disk_;
};

// Those that a path given by hand means: a checkpoint itself, or the checkpoints of a folder or a run, as paths() lists
// them. Throws DataError where there are none.
std::vector<std::string> find_checkpoints(std::string path);

// The step of a directory called step-NNNNNNNN, eight digits or more.
std::optional<int64_t> step_of_name(std::string_view name);

}  // namespace trivet
