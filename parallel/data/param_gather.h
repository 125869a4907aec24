// ParamGather: all-gathers the weights after each data-parallel rank has updated its part.
//
// Weights are gathered once per step, in the order of the forward pass: all together after the optimizer, or overlapped
// with the next forward pass (training or evaluation), whose units wait only for their own weights. Streamed weights
// (ZeRO-3) are gathered for each unit's forward and backward, while the previous unit computes.
//
// Weights that are gathered in FP8 (FlatOptions::gathers_fp8) are quantised first, once per update: each rank finds the
// largest magnitudes in its own parts, an all-reduce extends them to the whole tensors, and each rank encodes its own
// parts. The codes are the same as if whole weights were quantised where they are used.
#pragma once

#include <memory>
#include <vector>

#include "parallel/comm_streams.h"
#include "parallel/data/flat_buffer.h"

namespace trivet {

class Ops;

class ParamGather {
 public:
  struct Options {
    int comm_streams = 0;  // collectives in flight during compute; 0: none, they run on the compute stream
    bool poison = false;   // fills what will be gathered with NaN, to test that nothing is read too early
    // The chunk of each of a rank's forward passes, in order; ahead: by how many passes the first stage leads. All
    // stages gather a chunk's weights at the same time, while the first stage runs the first pass of the previous
    // chunk. Empty: all chunks are gathered together.
    std::vector<int> forward_chunks{};
    int ahead = 0;
    const Arena* registered = nullptr;  // the weights' arena, to register with the communicators; null: none
    Communicator* tensor = nullptr;     // the tensor group, whose ranks hold parts of the same tensors; null: one rank
  };
  // Collective over on.group.
  ParamGather(FlatBuffer& flat, Ops& ops, const CommStreamSite& on, const Options& options);

  void updated();  // the optimizer has written the ranks' own parts
  void begin_forward_pass();
  // For the next steps; no effect if Options::forward_chunks is empty.
  void set_forward_chunks(std::vector<int> chunks) {
    if (!options_.forward_chunks.empty()) options_.forward_chunks = std::move(chunks);
  }
  void before_forward(int unit) { use(unit, unit + 1); }
  void before_backward(int unit) { use(unit, unit - 1); }
  // Waits for all gathers; afterwards nothing reads the ranks' own parts.
  void finish();

  int64_t registered_bytes() const { return comm_streams_.registered_bytes(); }

 private:
  // Waits for the unit's weights and prefetches those of unit `next` if that unit is in the same stage.
  void use(int unit, int next);
  void quantise();
  void start_stage(int stage);  // gathers weights that are not streamed, unless already begun
  size_t gather_streamed(int unit);
  void gather(size_t bucket, Tensor whole, Event& gathered);
  void wait_for_prefetches();

  FlatBuffer& flat_;
  Ops& ops_;
  Stream& compute_;
  Communicator& data_;
  Options options_;
  std::vector<int> streamed_;                     // [FlatBuffer::kStreamed] the unit in that buffer; -1: none
  size_t current_ = 0;                            // index in streamed_ of the buffer in use
  size_t forward_passes_ = 0;                     // since the last update
  std::vector<bool> not_begun_;                   // [bucket] to be gathered
  std::vector<std::unique_ptr<Event>> gathered_;  // [bucket]
  std::vector<bool> in_flight_;                   // [bucket] compute has not waited for it yet
  CommStreams comm_streams_;                      // last: its streams end before the events they record
};

}  // namespace trivet
