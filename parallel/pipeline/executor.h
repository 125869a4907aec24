// Executor: runs one rank's program of a pipeline schedule: a loop over the ops and a switch over their kinds. The
// steps, numbered as in the .cc:
//   forward   1. the input: received from the previous stage's rank, or that stage's output on this rank
//             2. the stage's forward   3. the output is sent, if the next stage is on another rank
//   backward  1. the gradient of the output: received, or from this rank   2. the stage's backward
//             3. the gradient of the input is sent, if the previous stage is on another rank
//   a weight half needs no communication between stages
// Buffers rotate: a received buffer becomes a stage's input, and the stage's old input buffer receives next. An event
// per buffer marks when it may be overwritten.
//
// The constructor plans slots and stashes from the program and gives the rank's channels their communicators, streams
// and buffers. A transfer runs on its channel's stream during compute; without overlap_p2p_comm, the compute stream
// waits for each send.
#pragma once

#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/arena.h"
#include "kernels/base/trace.h"
#include "parallel/comm/comm.h"
#include "parallel/pipeline/channel.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/stage.h"

namespace trivet {

struct PipelineOptions {
  bool overlap_p2p_comm = true;
  int receives_posted = 1;    // ahead on each channel; at least the schedule's safe_channel_depth()
  bool poison_slots = false;  // fill a slot with NaN when it is freed
};

class Executor {
 public:
  // The number of tensors of the boundary shape that a rank's executor needs for gradients and receives.
  static int boundary_buffers(const Schedule& schedule, int rank, const PipelineOptions& options);

  // Collective over `pipeline`, the p ranks in order. `schedule`: one that check_schedule() accepts. `buffers`: as many
  // as boundary_buffers() returns. Channels get rows in `trace`. Everything passed by reference must outlive it.
  Executor(const Schedule& schedule, Communicator& pipeline, Device& device, Stream& compute, Trace* trace,
           const std::vector<Tensor>& buffers, PipelineOptions options);

  // Sets the stage of each chunk, in order. To be called before the first run.
  void set_stages(std::vector<Stage*> stages);

  // Makes the next runs follow this schedule, with the first schedule's stages and channels. Slots, stashes and buffers
  // must be enough for both.
  void use(const Schedule& schedule);
  const Schedule& schedule() const { return *schedule_; }

  // One step: forward and backward of all micro-batches, or of the first `microbatches`.
  void run(int microbatches = std::numeric_limits<int>::max()) { run_ops(microbatches, {}, false); }
  // run() calls f, on its caller's thread, each time an op is queued (on a CPU: done). of: the number of ops in total.
  void on_progress(std::function<void(size_t done, size_t of)> f) { on_progress_ = std::move(f); }
  // The forwards of the first `microbatches` micro-batches, in the program's order.
  void run_forward_only(int microbatches, const BoundaryRows& rows = {}) { run_ops(microbatches, rows, true); }
  // Waits for pending sends: a receive can complete before the sender's stream has recorded the end.
  void finish_sends() {
    for (auto& [channel, send] : sends_) send->synchronize();
  }
  // The slot that holds a micro-batch's activations from the last run's forward through a stage of this rank.
  int slot_of(int stage, int microbatch) const { return forward_slot_.at({stage, microbatch}); }

 private:
  void run_ops(int microbatches, const BoundaryRows& rows, bool forward_only);
  void forward(const Op& op, int slot);
  void backward(const Op& op, int slot, int stash);
  Tensor take_gradient(const Op& op);
  void pass_on_gradient(const Op& op, Tensor gradient);
  void send(const Channel& channel, Tensor data);
  // The event after which a buffer that crosses stage boundaries may be overwritten.
  Event& free_event(Tensor buffer);

  const Schedule* schedule_;
  const int rank_;
  const Program& program() const { return schedule_->programs[static_cast<size_t>(rank_)]; }  // this rank's
  const PipelineOptions options_;
  Communicator& pipeline_;
  Device& device_;
  Stream& compute_;
  SlotPlan plan_;
  std::vector<Stage*> stages_;  // [chunk]
  std::function<void(size_t, size_t)> on_progress_;
  BoundaryRows rows_;  // of the current run
  std::map<Channel, std::unique_ptr<SendEnd>> sends_;
  std::map<Channel, std::unique_ptr<ReceiveEnd>> receives_;
  std::map<const void*, std::unique_ptr<Event>> free_events_;  // by the buffer's address
  std::deque<Tensor> gradients_;                               // buffers that no op holds, longest free first
  std::map<std::pair<int, int>, int> forward_slot_;            // (stage, micro-batch) of this rank -> slot
  std::map<std::pair<int, int>, Tensor> local_gradients_;  // (stage, micro-batch): passed between stages of this rank
};

}  // namespace trivet
