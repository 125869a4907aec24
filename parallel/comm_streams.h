// CommStreams: streams alongside the compute stream, each with its own communicator over one group, so that one
// collective per stream can be in flight. Collectives rotate through the streams, in the same order on all ranks. With
// no streams they run on the compute stream, over the group itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/base/arena.h"
#include "parallel/comm/comm.h"

namespace trivet {

struct CommStream {
  std::unique_ptr<Communicator> group;
  std::unique_ptr<Stream> stream;
};

// All of these must outlive the streams.
struct CommStreamSite {
  Device& device;
  Stream& compute;
  Communicator& group;
  Trace* trace = nullptr;  // null: nothing is recorded
};

class CommStreams {
 public:
  // Collective over on.group. name: the streams' row in the trace.
  CommStreams(const CommStreamSite& on, Category category, const std::string& name, int count)
      : group_(on.group), compute_(on.compute), computed_(on.device.create_event()) {
    for (int i = 0; i < count; ++i) {
      const std::string own_name = count == 1 ? name : name + " " + std::to_string(i);
      CommStream& comm_stream = comm_streams_.emplace_back();
      comm_stream.group = group_.twin(own_name, category);
      comm_stream.stream = on.device.create_side_stream(StreamPriority::high);
      if (on.trace) comm_stream.stream->set_trace_row(on.trace->add_row(own_name));
    }
  }

  // Registers the memory with the communicators (Communicator::register_buffer).
  void register_buffers(const Arena& arena) {
    for (const Tensor& block : arena.blocks()) {
      if (comm_streams_.empty()) register_buffer(group_, block);
      for (const CommStream& comm_stream : comm_streams_) register_buffer(*comm_stream.group, block);
    }
  }
  // Summed over communicators.
  int64_t registered_bytes() const { return registered_bytes_; }

  bool beside_compute() const { return !comm_streams_.empty(); }

  // The next stream, which waits for what compute has queued so far. REQUIRES: beside_compute().
  CommStream& after_compute() {
    CommStream& comm_stream = comm_streams_[turn_++ % comm_streams_.size()];
    compute_.record(*computed_);
    comm_stream.stream->wait(*computed_);
    compute_.hand_over(*comm_stream.stream);
    return comm_stream;
  }

  // Runs collective(group, stream) after what compute has queued so far. `done` is recorded after it; without streams,
  // compute needs no event, and `done` is left as it is, complete.
  template <class F>
  void run(Event& done, F&& collective) {
    if (!beside_compute()) return collective(group_, compute_);
    CommStream& comm_stream = after_compute();
    collective(*comm_stream.group, *comm_stream.stream);
    comm_stream.stream->record(done);
  }

 private:
  void register_buffer(Communicator& group, const Tensor& block) {
    registered_.push_back(group.register_buffer(block));
    if (registered_.back()) registered_bytes_ += block.bytes();
  }

  Communicator& group_;
  Stream& compute_;
  std::unique_ptr<Event> computed_;
  std::vector<CommStream> comm_streams_;
  std::vector<std::shared_ptr<void>> registered_;
  int64_t registered_bytes_ = 0;
  size_t turn_ = 0;
};

}  // namespace trivet
