// CheckpointMirror: a second folder of a run's checkpoints, on another file system, for the day when the first is lost.
// A thread of its own copies each committed one behind the run, reads the copy back and compares it with its hashes,
// and only then gives it its name. Where copies take longer than the run takes to save, it skips to the newest. A copy
// that is under way when the run is asked to stop is given up, and made by the next start. On rank 0.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "engine/checkpoint/store.h"

namespace trivet {

class CheckpointMirror {
 public:
  // Makes the folder `to`. Throws IoError.
  CheckpointMirror(CheckpointStore from, CheckpointStore to, const Retention& keep);
  ~CheckpointMirror();  // gives up the copy that is under way
  CheckpointMirror(const CheckpointMirror&) = delete;
  CheckpointMirror& operator=(const CheckpointMirror&) = delete;

  void copy(int64_t step);  // a committed one, where it has no copy yet. Any thread
  // What became of the copies since the last call, for people; "": nothing went wrong.
  std::string take_problem();
  bool wait(double seconds);  // at most, for the last copy; true: it is made

 private:
  void run();
  void copy_now(int64_t step);

  const CheckpointStore from_, to_;
  const Retention keep_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t wanted_ = -1;  // the step to be copied next; -1: none
  bool busy_ = false;
  std::atomic<bool> ends_ = false;
  std::string problem_;
  std::thread thread_;
};

}  // namespace trivet
