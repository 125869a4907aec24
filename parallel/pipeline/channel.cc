#include "parallel/pipeline/channel.h"

namespace trivet {
namespace {

std::unique_ptr<Stream> make_stream(Device& device, TraceRow* row) {
  auto stream = device.create_side_stream(StreamPriority::high);
  stream->set_trace_row(row);
  return stream;
}

}  // namespace

SendEnd::SendEnd(std::unique_ptr<Communicator> pair, Device& device, TraceRow* row)
    : pair_(std::move(pair)), stream_(make_stream(device, row)), written_(device.create_event()) {}

void SendEnd::send(Tensor data, Stream& compute, Event& sent) {
  compute.record(*written_);
  stream_->wait(*written_);
  pair_->send(data, 1, *stream_);
  stream_->record(sent);
}

ReceiveEnd::ReceiveEnd(std::unique_ptr<Communicator> pair, Device& device, TraceRow* row,
                       std::deque<BoundaryBuffer> buffers)
    : pair_(std::move(pair)), stream_(make_stream(device, row)), idle_(std::move(buffers)) {
  check(!idle_.empty(), "a channel posts at least one receive ahead");
  for (size_t i = 0; i < idle_.size(); ++i) arrived_.push_back(device.create_event());
}

void ReceiveEnd::start(int messages) {
  check(posted_.empty() && unposted_ == 0, "a pipeline channel starts a step with messages left over");
  unposted_ = messages;
  post();
}

void ReceiveEnd::post() {
  while (unposted_ > 0 && !idle_.empty()) {
    const BoundaryBuffer buffer = idle_.front();
    idle_.pop_front();
    --unposted_;
    if (buffer.free) stream_->wait(*buffer.free);
    pair_->recv(buffer.data, 0, *stream_);
    Event* arrived = arrived_[next_event_++ % arrived_.size()].get();
    stream_->record(*arrived);
    posted_.push_back({buffer.data, arrived});
  }
}

Tensor ReceiveEnd::take(Stream& compute) {
  check(!posted_.empty(), "nothing is on its way in this pipeline channel");
  const Posted message = posted_.front();
  posted_.pop_front();
  compute.wait(*message.arrived);
  return message.data;
}

void ReceiveEnd::give(const BoundaryBuffer& buffer) {
  idle_.push_back(buffer);
  post();
}

}  // namespace trivet
