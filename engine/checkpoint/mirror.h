// CheckpointMirror: a copy of a run's checkpoints in a second folder, on another file system. A background thread
// copies each committed checkpoint, reads the copy back, verifies its hashes, and only then gives it its final name. If
// copying takes longer than the save interval, it skips to the newest checkpoint. A copy in progress when the run is
// asked to stop is abandoned and redone at the next start. Used on rank 0.
#pragma once

#include <memory>
#include <string>

#include "base/sink_queue.h"
#include "engine/checkpoint/store.h"

namespace trivet {

class CheckpointMirror {
 public:
  // Creates the folder `to`, and marks it as the mirror of `from`. Throws IoError; ConfigError if it already holds
  // checkpoints of another folder.
  CheckpointMirror(const CheckpointStore& from, const CheckpointStore& to, const Retention& keep);
  ~CheckpointMirror();  // abandons the copy in progress; a thread stuck in disk I/O is detached

  void copy(int64_t step);  // `step` must be committed; no-op if its copy exists. One thread at a time
  // Returns the copy failures since the last call, as a message; "": none.
  std::string take_problem();
  // Waits up to `seconds` for the last copy. True: it is complete, or abandoned after kStalled s without progress.
  bool wait(double seconds);

 private:
  static constexpr double kStalled = 60;
  struct Copier;
  const std::shared_ptr<Copier> copier_;
  SinkQueue queue_;
};

}  // namespace trivet
