// The two ends of a pipeline channel (schedule.h): a FIFO of boundary tensors from one rank to another, over a
// communicator and a stream of its own, so that transfers run beside compute and channels never wait for each other.
//
// Buffers are swapped, never copied: take() returns the buffer of the oldest message, give() posts another one in its
// place.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/device.h"
#include "parallel/comm/comm.h"
#include "parallel/pipeline/schedule.h"

namespace trivet {

struct BoundaryBuffer {
  Tensor data;
  Event* free = nullptr;  // after it the buffer may be written again; null: now. Outlives the buffer's use.
};

class SendEnd {
 public:
  SendEnd(std::unique_ptr<Communicator> pair, Device& device, TraceRow* row);
  // Sends what `compute` has written to data by now; `sent` completes when data may be written again.
  void send(Tensor data, Stream& compute, Event& sent);

 private:
  std::unique_ptr<Communicator> pair_;  // rank 0 sends, rank 1 receives
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> written_;
};

class ReceiveEnd {
 public:
  // Posts one receive ahead for each of `buffers`.
  ReceiveEnd(std::unique_ptr<Communicator> pair, Device& device, TraceRow* row, std::deque<BoundaryBuffer> buffers);

  // Begins a step of so many messages and posts the first receives. REQUIRES: the last step's were all taken.
  void start(int messages);
  // The oldest message not yet taken: `compute` waits for it. give() must follow before the next take().
  Tensor take(Stream& compute);
  void give(const BoundaryBuffer& buffer);

 private:
  struct Posted {
    Tensor data;
    Event* arrived;
  };
  void post();  // from idle_ to posted_, while messages are left

  std::unique_ptr<Communicator> pair_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Event>> arrived_;  // used in turn, one for each receive that can be posted at once
  size_t next_event_ = 0;
  std::deque<BoundaryBuffer> idle_;
  std::deque<Posted> posted_;
  int unposted_ = 0;  // messages of this step that no receive has been posted for
};

}  // namespace trivet
