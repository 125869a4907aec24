// CommBackEnd: moves the data of a Communicator (comm.h), which has checked the arguments. Two kinds exist: one whose
// calls block a host thread (threads, MPI), and one whose calls are queued on a device's streams (NCCL, staged).
// A new back end must pass the cases of tests/support/comm_cases.h.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <fmt/format.h>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/device.h"
#include "parallel/comm/call.h"

namespace trivet {

class Communicator;

// The first failure in a world. rank -1: none.
struct Failure {
  int rank = -1;
  std::string why{};
};

struct CommGroup {
  std::string name;                     // for the trace and for errors
  std::vector<int> world_ranks;         // of the members, in group order
  int rank = 0;                         // this rank's index in the group; -1: not a member
  Category category = comm_of("data");  // of its calls, in the trace
  uint64_t number = 0;                  // unique among groups that share two or more ranks

  int size() const { return static_cast<int>(world_ranks.size()); }
  int world_rank(int member) const { return world_ranks[static_cast<size_t>(member)]; }
  int world_rank() const { return world_rank(rank); }

  // The group of all ranks.
  static CommGroup world(int rank, int size) {
    CommGroup group{.name = "world", .world_ranks = std::vector<int>(static_cast<size_t>(size)), .rank = rank};
    std::iota(group.world_ranks.begin(), group.world_ranks.end(), 0);
    return group;
  }
  // The subgroup of these members. Throws Error if one is not a member or is listed twice.
  CommGroup part(std::span<const int> members, std::string part_name, Category part_category) const {
    CommGroup group{.name = std::move(part_name), .world_ranks = {}, .rank = -1, .category = part_category};
    for (const int member : members) {
      if (member < 0 || member >= size())
        fail(fmt::format("split '{}' of group '{}': no member has rank {} of {}", group.name, name, member, size()));
      const int of_world = world_rank(member);
      if (std::ranges::count(group.world_ranks, of_world) > 0)
        fail(fmt::format("split '{}' of group '{}': rank {} is named twice", group.name, name, member));
      if (member == rank) group.rank = group.size();
      group.world_ranks.push_back(of_world);
    }
    return group;
  }
};

[[noreturn]] inline void fail_split(const CommGroup& group, const std::string& part, int other) {
  throw MismatchError(fmt::format("group '{}', split '{}': ranks {} and {} list different members", group.name, part,
                                  group.world_rank(), group.world_rank(other)));
}

class CommBackEnd {
 public:
  explicit CommBackEnd(CommGroup of) : group(std::move(of)) {}
  virtual ~CommBackEnd() = default;
  CommBackEnd(const CommBackEnd&) = delete;
  CommBackEnd& operator=(const CommBackEnd&) = delete;

  virtual void barrier() = 0;
  // Collective over this group. `part`: the group of `members`. Returns null if this rank is not a member.
  virtual std::shared_ptr<CommBackEnd> split(const std::vector<int>& members, CommGroup part) = 0;
  virtual void abort(const std::string& why) noexcept = 0;
  virtual Failure failure() const = 0;
  virtual Memory* buffer_memory() { return nullptr; }
  virtual std::shared_ptr<void> register_buffer(Tensor) { return nullptr; }

  // A send costs nothing: the receive accounts for the transfer.
  SpanInfo span_of(const Call& call) const {
    const int64_t bytes = call.whole().bytes();
    return {.name = name_of(call),
            .category = group.category,
            .bytes = bytes,
            .ranks = group.size(),
            .cost = call.sends ? WireCost{} : wire_cost(call.kind, bytes, group.size())};
  }

  const CommGroup group;
};

// A non-owning pointer to a group.
inline std::shared_ptr<Communicator> unowned(Communicator& world) { return {std::shared_ptr<void>(), &world}; }

// For tensors in host memory.
class HostBackEnd : public CommBackEnd {
 public:
  explicit HostBackEnd(CommGroup of)
      : CommBackEnd(std::move(of)),
        sent_(static_cast<size_t>(group.size())),
        received_(static_cast<size_t>(group.size())) {}

  // Returns when this rank's part of the call has finished; sets `clock`'s times. One thread at a time. REQUIRES:
  // more than one rank. When it throws, every rank of the world fails.
  void perform(const Call& call, SpanClock& clock) {
    guarded([&] {
      const CallSignature mine = next_signature(call);
      if (call.sends) clock.set_no_wire();
      if (call.kind == CommCall::transfer) {
        const int me = group.world_rank(), other = group.world_rank(call.peer);
        clock.set_transfer_id(
            transfer_id(group.number, call.sends ? me : other, call.sends ? other : me, mine.sequence));
      }
      move(call, mine, clock);
    });
  }
  void barrier() override {
    SpanClock unused;
    if (group.size() > 1) perform({.kind = CommCall::barrier}, unused);
  }

 protected:
  virtual void move(const Call& call, const CallSignature& mine, SpanClock& clock) = 0;
  // Called when move() or split() throws on this rank.
  virtual void failed(const std::exception& why) noexcept = 0;

  CallSignature next_signature(const Call& call) {
    auto& by_peer = call.sends ? sent_ : received_;
    return signature_of(call,
                        call.kind == CommCall::transfer ? by_peer[static_cast<size_t>(call.peer)]++ : sequence_++);
  }

  template <class F>
  void guarded(F&& f) {
    check(!busy_.exchange(true), "a communicator is used by two threads concurrently");
    try {
      f();
    } catch (const std::exception& e) {
      busy_ = false;
      failed(e);
      throw;
    }
    busy_ = false;
  }

 private:
  uint64_t sequence_ = 0;
  std::vector<uint64_t> sent_, received_;  // transfers so far, by peer
  std::atomic<bool> busy_ = false;
};

// The arithmetic of all_reduce and reduce_scatter: the same in every CPU back end, so their results agree bitwise.
// Each output[i] = (((inputs[0][i] + inputs[1][i]) + inputs[2][i]) + …), or their maximum, for i < count.
// inputs[r] is from rank r. fp32 is added in fp32; bf16 in fp32, rounded once; int64 is exact, modulo 2^64. A maximum
// is NaN if any operand is NaN. An output may be one of the inputs; otherwise they must not overlap.
// Throws Error for other element types. Any thread may call it.
void reduce_in_rank_order(Reduce op, DType dtype, std::span<const void* const> inputs, std::span<void* const> outputs,
                          int64_t count);

// For calls that run on a device's streams.
class DeviceBackEnd : public CommBackEnd {
 public:
  DeviceBackEnd(CommGroup of, Device& on) : CommBackEnd(std::move(of)), device(on) {}

  // Queues a call and its span, or a send and a receive that do not wait for each other. In a group of one rank it
  // copies Call::in to Call::out.
  virtual void enqueue(std::span<const Call> calls, Stream& stream) = 0;
  // Allocates the host memory that the call will need.
  virtual void prepare(const Call&) {}
  // The callback names the call that this rank is in. It is called, on any thread, before an abort ends the call.
  virtual void set_abort_diagnostics(std::function<std::string()>) {}

  Device& device;
};

}  // namespace trivet
