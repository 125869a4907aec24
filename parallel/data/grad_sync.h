// GradSync: reduces the gradients that each rank accumulates over its micro-batches to those of the global batch. Each
// rank receives its own part.
//
// The steps, numbered as in the .cc:
//   1. begin_step: counts the backward passes of units that will add to each bucket
//   2. after_backward: counts down; at zero the bucket's reduction starts on a communication stream, while compute
//      continues with earlier layers
//   3. finish: starts the remaining reductions (all, without overlap), and makes compute wait for the sums
//   4. finish: over other groups, also sums gradients that are partial on the tensor axis (every tensor rank holds the
//      weight, but applies it to different positions or heads), and those of tied embeddings
//
// A bucket is reduced once per step: when the last micro-batch has added to it (overlapped with the following backward
// passes), or at the end. A streamed one (ZeRO-2, -3) is reduced after each backward pass of its unit, and its sum is
// added to the rank's own part.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/comm_streams.h"
#include "parallel/data/flat_buffer.h"

namespace trivet {

class Ops;

class GradSync {
 public:
  struct Options {
    int comm_streams = 0;               // collectives in flight during compute; 0: none, they run on the compute stream
    int micro_batches = 1;              // per step
    Reduce op = Reduce::sum;            // over the data-parallel group; average: the loss was scaled by the group size
    std::optional<int> delay{};         // backward passes between a bucket's last gradient and its reduction. With a
                                        // delay of r on stages r hops from the first, all start at the same time
    const Arena* registered = nullptr;  // the gradients' arena, to register with the communicators; null: none
    bool poison = false;  // fills gradients with NaN first, to test that nothing is read before it is written
    // [buckets, kNonFiniteNumbers] int64: op::FindNonFinite of this rank's own gradients, before the sums over ranks
    // spread NaN and Inf. Null: no search.
    Tensor non_finite{};
  };
  // Collective over on.group.
  GradSync(FlatBuffer& flat, Ops& ops, const CommStreamSite& on, const Options& options);

  void begin_step();
  void set_micro_batches(int64_t m) { options_.micro_batches = static_cast<int>(m); }  // in the next steps
  void before_backward(int unit);
  void after_backward(int unit);
  void end_backward_pass();
  // The group to sum over, keyed by the axes that a gradient is partial on; null: this rank alone.
  using SumGroups = std::map<AxisSet, Communicator*>;
  // Completes all reductions. Then sums gradients that are partial on further axes (FlatBuffer::partial_grads).
  void finish(const SumGroups& groups);

  int64_t registered_bytes() const { return comm_streams_.registered_bytes(); }

 private:
  // One of flat_.streamed_grads.
  struct Streamed {
    std::array<std::unique_ptr<Event>, 2> reduced;  // [FlatBucket::quantised]
    int unit = -1;                                  // the unit whose gradients it holds; -1: none
    bool in_flight = false;                         // their reduction has begun; not yet added to this rank's parts
  };
  void reduce(size_t bucket, Tensor whole, Tensor part, Event& reduced);
  void start(size_t bucket);         // starts the reduction of a bucket that is not streamed
  void accumulate(size_t streamed);  // adds the buffer's sums, if in flight, to this rank's parts, and frees it
  void sum_partial(const FlatBuffer::PartialGrads& partial, Communicator& group);

  FlatBuffer& flat_;
  Ops& ops_;
  Stream& compute_;
  Options options_;
  std::vector<Streamed> streamed_;
  size_t next_streamed_ = 0;
  std::vector<std::unique_ptr<Event>> reduced_;  // [bucket]
  std::vector<int64_t> pending_;  // [bucket] backward passes of units still to add to it; -1: its reduction has begun
  int64_t backward_passes_ = 0;   // of stages, in this step
  std::deque<std::pair<size_t, int64_t>> delayed_;  // (bucket, n): starts when backward_passes_ exceeds n
  CommStreams comm_streams_;                        // last: its streams end before the events they record
};

}  // namespace trivet
