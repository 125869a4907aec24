// Mailbox: the transfers in flight to one rank of a thread group, in order for each sender.
//
// A sender whose receiver is already waiting copies straight into the receiver's tensor; otherwise it leaves a parcel,
// a buffer from a pool that grows to the largest number of parcels ever in flight. A sender never waits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
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
  void put(int from, const CallSignature& signature, const void* data) {
    const auto bytes = static_cast<size_t>(bytes_of(signature));
    std::unique_lock lock(point_->mutex);
    if (waiting_.state == Waiting::open && waiting_.from == from && waiting_.expected == signature) {
      waiting_.state = Waiting::copying;
      waiting_.moves_ns = now_ns();
      lock.unlock();
      if (bytes > 0) std::memcpy(waiting_.data, data, bytes);
      lock.lock();
      waiting_.state = Waiting::done;
    } else {
      Parcel parcel{from, signature, take_buffer(bytes)};
      lock.unlock();
      if (bytes > 0) std::memcpy(parcel.buffer.data.get(), data, bytes);
      lock.lock();
      parcels_.push_back(std::move(parcel));
    }
    lock.unlock();
    point_->changed.notify_all();
  }

  struct Taken {
    CallSignature signature;  // the sender's
    int64_t moves_ns = 0;     // when the data began to move into the receiver's tensor
  };
  // Called by the owner. Receives the next transfer from `from` into `data`, which is not written unless the sender's
  // signature is `expected`. Throws if the world has failed or the sender (rank `from_world` of the world) has ended.
  Taken take(int from, const CallSignature& expected, void* data, ThreadWorld& world, int from_world,
             const std::string& group) {
    std::unique_lock lock(point_->mutex);
    waiting_ = {Waiting::open, from, expected, data, 0};
    for (;;) {
      if (waiting_.state == Waiting::done) {
        const Taken taken{expected, waiting_.moves_ns};
        waiting_ = {};
        return taken;
      }
      const auto it = std::find_if(parcels_.begin(), parcels_.end(), [&](const Parcel& p) { return p.from == from; });
      if (it != parcels_.end()) {
        waiting_ = {};
        Parcel parcel = std::move(*it);
        parcels_.erase(it);
        lock.unlock();
        const int64_t moves_ns = now_ns();
        if (const auto bytes = static_cast<size_t>(bytes_of(expected)); parcel.signature == expected && bytes > 0)
          std::memcpy(data, parcel.buffer.data.get(), bytes);
        lock.lock();
        free_.push_back(std::move(parcel.buffer));
        return {parcel.signature, moves_ns};
      }
      // A failure elsewhere does not end the wait while the sender copies into `data`.
      if (waiting_.state == Waiting::open && (world.failed() || world.ended(from_world))) {
        waiting_ = {};
        if (world.failed()) world.throw_peer_failure();
        fail("group '" + group + "': recv of transfer " + std::to_string(expected.sequence) + " from rank " +
             std::to_string(from_world) + ", which has ended without that send");
      }
      point_->changed.wait(lock);
    }
  }

 private:
  struct Buffer {
    std::unique_ptr<std::byte[]> data;
    size_t capacity = 0;
  };
  struct Parcel {
    int from = -1;
    CallSignature signature;
    Buffer buffer;
  };
  // The owner's wait: at most one, because a group is used by one stream at a time.
  struct Waiting {
    enum State { none, open, copying, done } state = none;
    int from = -1;
    CallSignature expected;
    void* data = nullptr;
    int64_t moves_ns = 0;  // set by the sender
  };
  Buffer take_buffer(size_t bytes) {
    // The smallest buffer that fits: large ones stay free for large tensors.
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it)
      if (it->capacity >= bytes && (best == free_.end() || it->capacity < best->capacity)) best = it;
    if (best == free_.end()) return {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
    Buffer buffer = std::move(*best);
    free_.erase(best);
    return buffer;
  }

  std::shared_ptr<WaitPoint> point_;
  std::vector<Parcel> parcels_;  // in order of arrival
  std::vector<Buffer> free_;
  Waiting waiting_;
};

}  // namespace trivet
