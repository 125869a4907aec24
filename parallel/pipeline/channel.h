// The two ends of a pipeline channel (schedule.h): a FIFO of boundary tensors from one rank to another, over its own
// communicator and stream, so that transfers overlap compute and channels never wait for each other.
//
// Buffers are swapped, never copied: take() returns the buffer of the oldest message, give() posts another one in its
// place.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/device.h"
#include "parallel/comm/comm.h"
#include "parallel/pipeline/schedule.h"

namespace trivet {

// The part of a boundary tensor that is transferred in a run: the first `count` rows of dimension 0; empty: all of it.
struct BoundaryRows {
  std::optional<int64_t> count = {};
  Tensor of(const Tensor& whole) const { return count ? whole.slice(0, *count) : whole; }
};

struct BoundaryBuffer {
  Tensor data;
  Event* free = nullptr;  // after this event the buffer may be overwritten; null: now. Must outlive the buffer's use.
};

class SendEnd {
 public:
  SendEnd(std::unique_ptr<Communicator> pair, Device& device, TraceRow* row)
      : pair_(std::move(pair)),
        stream_(device.create_side_stream(StreamPriority::high)),
        written_(device.create_event()) {
    stream_->set_trace_row(row);
  }
  // Sends `data` as written by the work queued on `compute` so far; `sent` completes when it may be overwritten.
  void send(Tensor data, Stream& compute, Event& sent) {
    compute.record(*written_);
    stream_->wait(*written_);
    compute.hand_over(*stream_);
    pair_->send(data, 1, *stream_);
    stream_->record(sent);
  }
  void synchronize() { stream_->synchronize(); }

 private:
  std::unique_ptr<Communicator> pair_;  // rank 0 sends, rank 1 receives
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> written_;
};

class ReceiveEnd {
 public:
  // Posts one receive ahead for each of `buffers`.
  ReceiveEnd(std::unique_ptr<Communicator> pair, Device& device, TraceRow* row, std::deque<BoundaryBuffer> buffers)
      : pair_(std::move(pair)), stream_(device.create_side_stream(StreamPriority::high)), idle_(std::move(buffers)) {
    check(!idle_.empty(), "a channel posts at least one receive ahead");
    for (size_t i = 0; i < idle_.size(); ++i) arrived_.push_back(device.create_event());
    stream_->set_trace_row(row);
  }

  // Begins a step with these messages and posts the first receives. REQUIRES: all earlier ones have been taken.
  void start(std::deque<SpanLabel> messages, const BoundaryRows& rows) {
    check(posted_.empty() && unposted_.empty(), "a pipeline channel starts a step with messages left over");
    unposted_ = std::move(messages);
    rows_ = rows;
    post();
  }
  // Returns the oldest message not yet taken, and makes `compute` wait for it. give() must precede the next take().
  Tensor take(Stream& compute) {
    check(!posted_.empty(), "no message is posted in this pipeline channel");
    const Posted message = posted_.front();
    posted_.pop_front();
    compute.wait(*message.arrived);
    return message.data;
  }
  void give(const BoundaryBuffer& buffer) {
    idle_.push_back(buffer);
    post();
  }

 private:
  struct Posted {
    Tensor data;
    Event* arrived;
  };
  void post() {
    while (!unposted_.empty() && !idle_.empty()) {
      const BoundaryBuffer buffer = idle_.front();
      idle_.pop_front();
      stream_->label() = unposted_.front();
      unposted_.pop_front();
      if (buffer.free) stream_->wait(*buffer.free);
      pair_->recv(rows_.of(buffer.data), 0, *stream_);
      Event* arrived = arrived_[next_event_++ % arrived_.size()].get();
      stream_->record(*arrived);
      posted_.push_back({buffer.data, arrived});
    }
  }

  std::unique_ptr<Communicator> pair_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Event>> arrived_;  // reused cyclically, one per receive that can be posted ahead
  size_t next_event_ = 0;
  std::deque<BoundaryBuffer> idle_;
  std::deque<Posted> posted_;
  std::deque<SpanLabel> unposted_;  // messages of this step whose receives are not yet posted
  BoundaryRows rows_;               // of each message
};

}  // namespace trivet
