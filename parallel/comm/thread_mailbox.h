// Mailbox: the transfers on their way to one rank of a thread group, in order for each sender.
//
// A sender whose receiver already waits copies straight into the receiver's tensor; else it leaves a parcel, a buffer
// from a pool that grows to the most ever in flight. A sender never waits.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/call.h"
#include "parallel/comm/thread_world.h"

namespace trivet {

class Mailbox {
 public:
  explicit Mailbox(std::shared_ptr<WaitPoint> point) : point_(std::move(point)) {}

  // Called by rank `from` of the group.
  void put(int from, const CallSignature& signature, const void* data);

  struct Taken {
    CallSignature signature;  // the sender's
    int64_t sent_ns = 0;
  };
  // Called by the owner: the next transfer from `from` into `data`, which is not written unless the sender's signature
  // is `expected`. Throws when the world has failed, or when the sender (`from_world` of the world) has ended.
  Taken take(int from, const CallSignature& expected, void* data, ThreadWorld& world, int from_world,
             const std::string& group);

 private:
  struct Buffer {
    std::unique_ptr<std::byte[]> data;
    size_t capacity = 0;
  };
  struct Parcel {
    int from = -1;
    CallSignature signature;
    Buffer buffer;
    int64_t sent_ns = 0;
  };
  // The owner's wait: at most one, because a group is used by one stream at a time.
  struct Waiting {
    enum State { none, open, copying, done } state = none;
    int from = -1;
    CallSignature expected;
    void* data = nullptr;
    int64_t sent_ns = 0;  // by the sender
  };
  Buffer take_buffer(size_t bytes);

  std::shared_ptr<WaitPoint> point_;
  std::vector<Parcel> parcels_;  // in order of arrival
  std::vector<Buffer> free_;
  Waiting waiting_;
};

}  // namespace trivet
