// ParamGather: from the parts that the ranks of a data-parallel group have updated to whole weights again.
//
// Weights that are kept whole are gathered once a step, in the order in which the forward pass needs them: all at once
// after the optimizer, or overlapped: beside the next forward pass (training or evaluation), whose units wait for their
// own weights only. Streamed weights (ZeRO-3) are gathered for each unit's forward and backward, the next unit's while
// this one computes.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kernels/ops.h"
#include "parallel/data/flat_buffer.h"
#include "parallel/lanes.h"

namespace trivet {

class ParamGather {
 public:
  // Takes the memory for streamed buckets from `arena`, which also has the weights that are kept.
  ParamGather(FlatBuffer& flat, Arena& arena);

  struct Options {
    int lanes = 0;        // collectives in flight beside compute; 0: none, they run on the compute stream
    bool poison = false;  // test that nothing is read too early: what is about to be gathered is filled with NaN first
    // The chunks of a rank's forward passes, in their order, and how many passes later than the first stage this one
    // is. With them a chunk's weights are gathered when the first stage runs the first pass of the chunk before, and so
    // by all stages at the same time (align_param_gather); empty: all at once.
    std::vector<int> forward_chunks{};
    int ahead = 0;
    bool register_buffers = false;  // the communicators are told where the arena is
  };
  // Collective over `data`, which outlives this.
  void connect(Ops& ops, Stream& compute, Device& device, Communicator& data, const Options& options, Trace* trace);

  // Calls write(param) for all parameters, one bucket at a time with whole weights to write to, zeroed.
  template <class F>
  void initialize(F&& write);

  // The ranks' own parts are new.
  void updated();
  void before_forward(int unit) { use(unit, unit + 1); }
  void before_backward(int unit) { use(unit, unit - 1); }
  // Waits for all gathers: what is kept whole is whole, and nothing reads the ranks' own parts any more.
  void finish();

  int64_t registered_bytes() const { return lanes_->registered_bytes(); }  // REQUIRES: connected

 private:
  struct Streamed {
    Tensor whole;  // [largest] model dtype
    std::unique_ptr<Event> gathered;
    int bucket = -1;
  };
  // The unit's weights are needed now; those of unit `next` soon, if it is of the same stage.
  void use(int unit, int next);
  int streamed_bucket(int unit) const;
  void start_stage(int stage);  // the gathering of what is kept whole, unless it has begun
  void forward_pass_begins();
  size_t gather_streamed(int bucket);
  void gather(Tensor part, Tensor whole, Event& gathered);

  FlatBuffer& flat_;
  const Arena& arena_;
  std::vector<Streamed> streamed_;
  size_t current_ = 0;  // of streamed_: in use

  Ops* ops_ = nullptr;
  Stream* compute_ = nullptr;
  std::optional<Lanes> lanes_;
  Options options_;
  size_t forward_passes_ = 0;                     // since the last update
  std::vector<bool> not_begun_;                   // [bucket] to be gathered
  std::vector<std::unique_ptr<Event>> gathered_;  // [bucket]
  std::vector<bool> under_way_;                   // [bucket] nobody has waited for it yet
};

template <class F>
void ParamGather::initialize(F&& write) {
  for (size_t i = 0; i < flat_.buckets.size(); ++i) {
    const FlatBucket& bucket = flat_.buckets[i];
    const Tensor whole = bucket.weights ? bucket.weights : streamed_[0].whole.slice(0, bucket.numel());
    ops_->fill(whole, 0, *compute_);
    flat_.point_weights(i, whole);
    for (const FlatSegment& segment : flat_.segments_of(bucket)) write(*segment.param);
    if (bucket.weights) continue;
    ops_->convert(whole.slice(bucket.own_begin - bucket.begin, bucket.own_weights.numel()), bucket.own_weights,
                  *compute_);
    flat_.point_weights(i, {});
  }
}

}  // namespace trivet
