// CheckpointSaver: one rank's part in saving checkpoints, concurrently with training.
//
//   begin()                every rank, at the same step: its state is copied (async) and a background thread writes it
//   vote() -> advance()    at each step boundary, with the votes summed over all ranks: when all have written, rank 0's
//                          thread commits; when one has failed, the files are removed
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

// One rank's vote, or the sum of the ranks' votes by an all-reduce: int64_t members only.
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
    std::string layout;  // for people
    std::string config;  // config.resolved.yaml
    Retention keep{};
    std::function<void()> before_commit{};          // on rank 0; throws to prevent the commit
    std::function<void(int64_t step)> committed{};  // on rank 0; called by the thread that has committed the step
  };
  // `tensors`: the live saved_tensors(). `snapshot` [saved_bytes] u8 in host memory (Device::allocate_host): receives a
  // copy that is written while training continues; null: the live tensors are written while training waits.
  CheckpointSaver(Options options, std::vector<StateTensor> tensors, Tensor snapshot, Device& device, Stream& compute);

  // REQUIRES: !saving(). Saves the state that `compute` has reached; with a snapshot, work queued there from now on
  // may change it. The host does not wait.
  void begin(const TrainState& state);
  bool saving() const { return phase_ != Phase::idle; }
  // REQUIRES: !saving(). Later checkpoints go to `store`, whose folder may be new, without before_commit.
  void move_to(CheckpointStore store) {
    options_.store = std::move(store);
    options_.before_commit = nullptr;
    parents_ = Disk::Parents::made;
  }

  SaveVote vote();  // this rank's, now
  SaveEvent advance(const SaveVote& sum);
  void wait() const {  // until this rank has done its part of the phase
    if (job_.valid()) job_.wait();
  }

  int64_t step() const { return state_.step; }         // of the current or last save
  const std::string& error() const { return error_; }  // this rank's, if it made the last save fail
  // Why old checkpoints could not be removed after the last commit; on rank 0, else empty.
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
  Disk::Parents parents_ = Disk::Parents::expected;  // a deleted run directory is not made again
  std::vector<StateTensor> live_, written_;
  bool copies_;
  Device& device_;
  Stream& compute_;
  std::unique_ptr<Event> reached_;   // the state to save is complete, and in the snapshot if there is one
  std::unique_ptr<Stream> reading_;  // the writer's, if it reads device memory; else null
  TrainState state_;
  std::string temporary_;
  Phase phase_ = Phase::idle;
  std::string error_, not_removed_;
  bool failed_ = false;  // this rank, in this phase
  int64_t bytes_ = 0;
  double stall_seconds_ = 0;
  int64_t write_ns_ = 0;  // set by the job
  // The error of this phase's job; empty: none. The last member, as its destructor waits for the job.
  std::future<std::string> job_;
};

}  // namespace trivet
