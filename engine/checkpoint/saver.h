// CheckpointSaver: one rank's part in saving checkpoints, concurrently with training.
//
//   begin()                on every rank at the same step: copies its state (async); a background thread writes it
//   vote() -> advance()    at each step boundary, with the votes summed over all ranks: once all have written, rank 0's
//                          thread commits; if one has failed, the files are removed
//
// Ranks communicate only by their votes, which travel in the step's own all-reduce, and by the shared file system. All
// calls come from the training thread.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/state_tensors.h"
#include "engine/checkpoint/store.h"
#include "kernels/base/device.h"

namespace trivet {

// One rank's vote, or the all-reduced sum of all ranks' votes; int64_t members only.
struct SaveVote {
  int64_t busy = 0, failed = 0;
};

enum class SaveEvent { none, committed, failed };

class CheckpointSaver {
 public:
  struct Options {
    CheckpointStore store;
    int rank = 0, ranks = 1;
    std::string run;     // the same on all ranks
    std::string layout;  // informational
    std::string config;  // config.resolved.yaml
    Retention keep{};
    std::function<void()> before_commit{};          // on rank 0; throws to prevent the commit
    std::function<void(int64_t step)> committed{};  // on rank 0; called by the thread that committed the step
  };
  // `tensors`: the live saved_tensors(). `snapshot` [saved_bytes] u8 in host memory (Device::allocate_host): receives a
  // copy that is written while training continues; null: the live tensors are written while training waits.
  CheckpointSaver(Options options, std::vector<StateTensor> tensors, Tensor snapshot, Device& device, Stream& compute);

  // REQUIRES: !saving(). Saves the state as of the work queued on `compute`; with a snapshot, work queued later may
  // change the live tensors. The host does not wait.
  void begin(const TrainState& state);
  bool saving() const { return phase_ != Phase::idle; }
  // REQUIRES: !saving(). Saves later checkpoints to `store`, whose folder need not exist yet, without before_commit.
  void move_to(CheckpointStore store) {
    options_.store = std::move(store);
    options_.before_commit = nullptr;
    parents_ = Disk::Parents::made;
  }

  SaveVote vote();  // this rank's current vote
  SaveEvent advance(const SaveVote& sum);
  void wait() const {  // until this rank has done its part of the phase
    if (job_.valid()) job_.wait();
  }

  int64_t step() const { return state_.step; }         // of the current or last save
  const std::string& error() const { return error_; }  // this rank's error, if it made the last save fail
  // On rank 0, why old checkpoints could not be removed after the last commit; otherwise empty.
  const std::string& not_removed() const { return not_removed_; }
  int64_t bytes() const { return bytes_; }                 // of this rank's tensors
  double stall_seconds() const { return stall_seconds_; }  // of the last begin()
  int64_t write_ns() const { return write_ns_; }           // of this rank's shard, in the last committed save

 private:
  enum class Phase { idle, writing, committing, discarding };
  void start(std::function<void()> job);
  void write();
  void commit();

  Options options_;
  Disk::Parents parents_ = Disk::Parents::expected;  // a deleted run directory is not recreated
  std::vector<StateTensor> live_, written_;
  bool copies_;
  Device& device_;
  Stream& compute_;
  std::unique_ptr<Event> reached_;   // the state to save is complete, and in the snapshot if there is one
  std::unique_ptr<Stream> reading_;  // the writer's stream, if it reads device memory; else null
  TrainState state_;
  std::string temporary_;
  Phase phase_ = Phase::idle;
  std::string error_, not_removed_;
  bool failed_ = false;  // this rank failed in this phase
  int64_t bytes_ = 0;
  double stall_seconds_ = 0;
  int64_t write_ns_ = 0;  // set by the job
  // The error of this phase's job; empty: none. Declared last: its destructor waits for the job.
  std::future<std::string> job_;
};

}  // namespace trivet
