// The thread back end: ranks are threads of one process, and a group shares a barrier.
//
// A call publishes the rank's pointers on the barrier and waits for the others; then each rank reads its peers' memory
// directly, adds or copies its part, and waits again until all have read. Nothing is packed or allocated. A rank blocks
// on a condition variable and never spins, so that 8 ranks can share 2 cores.
#include <cstring>
#include <system_error>
#include <thread>

#include "parallel/comm/thread_mailbox.h"
#include "parallel/comm/thread_world.h"
#include "parallel/comm/world.h"

namespace trivet {
namespace {

// The state that all ranks of a group share.
class Barrier {
 public:
  // `world_ranks`: the members', in group order.
  Barrier(std::shared_ptr<ThreadWorld> world, std::vector<int> world_ranks, std::string name)
      : world(std::move(world)),
        world_ranks(std::move(world_ranks)),
        name(std::move(name)),
        number(this->world->next_group_number()),
        members(this->world_ranks.size()),
        point_(std::make_shared<WaitPoint>()) {
    this->world->add(point_);
    for (size_t i = 0; i < members.size(); ++i) {
      auto inbox_point = std::make_shared<WaitPoint>();
      this->world->add(inbox_point);
      inboxes.push_back(std::make_unique<Mailbox>(std::move(inbox_point)));
    }
  }

  struct Slot {
    CallSignature signature;
    void* data = nullptr;
  };
  // Written by its rank before wait(), read by the others after it. Calls alternate between the two slots: the first
  // rank in the next call may write while the last rank in this call still reads.
  struct Member {
    Slot slots[2];
    std::vector<int> split_into;     // members of its new group
    std::shared_ptr<Barrier> child;  // the new group's, created by its first member
    uint64_t arrivals = 0;           // guarded by the barrier
  };

  // Waits until every rank of the group has arrived; returns the time at which the last one did.
  // `rank`: in the group.
  int64_t wait(int rank, const char* call) {
    std::unique_lock lock(point_->mutex);
    if (world->failed()) world->throw_peer_failure();
    const uint64_t phase = arrive(rank);
    while (held_ < phase) {
      if (world->failed()) world->throw_peer_failure();
      for (size_t i = 0; i < members.size(); ++i)
        if (members[i].arrivals < phase && world->ended(world_ranks[i]))
          fail("group '" + name + "': rank " + std::to_string(world_ranks[static_cast<size_t>(rank)]) + " waits in " +
               call + ", but rank " + std::to_string(world_ranks[i]) + " has ended without that call");
      point_->changed.wait(lock);
    }
    return held_since_ns_;
  }

  // The barrier after ranks have read each other's memory: no rank may return and reuse its memory while another still
  // reads it. Ranks wait for nothing in between, so all will arrive; a failure elsewhere does not end this short wait.
  void wait_until_read(int rank) {
    std::unique_lock lock(point_->mutex);
    const uint64_t phase = arrive(rank);
    point_->changed.wait(lock, [&] { return held_ >= phase; });
  }

  const std::shared_ptr<ThreadWorld> world;
  const std::vector<int> world_ranks;
  const std::string name;
  const uint64_t number;  // unique in the world
  std::vector<Member> members;
  std::vector<std::unique_ptr<Mailbox>> inboxes;  // [receiver]

 private:
  // Returns the number of the phase that the rank arrives at; the last rank to arrive ends it. REQUIRES: lock held.
  uint64_t arrive(int rank) {
    const uint64_t phase = ++members[static_cast<size_t>(rank)].arrivals;
    if (++present_ == members.size()) {
      present_ = 0;
      held_ = phase;
      held_since_ns_ = now_ns();
      point_->changed.notify_all();
    }
    return phase;
  }

  std::shared_ptr<WaitPoint> point_;
  size_t present_ = 0;         // ranks that have arrived in the current phase
  uint64_t held_ = 0;          // phases that have ended
  int64_t held_since_ns_ = 0;  // when the last of them ended; stable, as the next needs every rank
};

class ThreadBackEnd : public HostBackEnd {
 public:
  ThreadBackEnd(std::shared_ptr<Barrier> barrier, CommGroup of)
      : HostBackEnd(std::move(of)), barrier_(std::move(barrier)) {}

  std::shared_ptr<CommBackEnd> split(const std::vector<int>& members, CommGroup part) override {
    std::shared_ptr<Barrier> child;
    guarded([&] {
      Barrier::Member& me = barrier_->members[static_cast<size_t>(group.rank)];
      me.split_into = members;
      rendezvous(next_signature({.kind = CommCall::split}), nullptr);
      if (part.rank >= 0)
        for (const int other : members)
          if (barrier_->members[static_cast<size_t>(other)].split_into != members) fail_split(group, part.name, other);
      if (part.rank == 0) me.child = std::make_shared<Barrier>(barrier_->world, part.world_ranks, part.name);
      barrier_->wait(group.rank, "split");
      if (part.rank >= 0) child = barrier_->members[static_cast<size_t>(members.front())].child;
      barrier_->wait(group.rank, "split");
      me.child.reset();
    });
    if (!child) return nullptr;
    part.number = child->number;
    return std::make_shared<ThreadBackEnd>(std::move(child), std::move(part));
  }

  void abort(const std::string& why) noexcept override { barrier_->world->fail(group.world_rank(), why, nullptr); }
  Failure failure() const override { return barrier_->world->failure(); }

 protected:
  void move(const Call& call, const CallSignature& mine, SpanClock& clock) override {
    if (call.kind == CommCall::transfer && call.sends)
      return barrier_->inboxes[static_cast<size_t>(call.peer)]->put(group.rank, mine, call.in.data);
    if (call.kind == CommCall::transfer) return receive(call, mine, clock);
    clock.set_wire(rendezvous(mine, call.in.data));
    if (call.kind == CommCall::barrier) return;
    try {
      take_part(call);
    } catch (...) {
      barrier_->wait_until_read(group.rank);
      throw;
    }
    barrier_->wait_until_read(group.rank);
  }

  void failed(const std::exception& why) noexcept override {
    if (!dynamic_cast<const PeerFailure*>(&why))
      barrier_->world->fail(group.world_rank(), why.what(), std::current_exception());
  }

 private:
  void take_part(const Call& call) {
    switch (call.kind) {
      case CommCall::all_reduce: {
        // Each rank owns one slice: it alone reads all ranks' terms, adds them, and writes the sum to all ranks.
        const int64_t n = call.in.numel(), begin = n * group.rank / group.size(),
                      end = n * (group.rank + 1) / group.size();
        post_addresses(begin * size_of(call.in.dtype));
        outputs_.clear();
        for (const void* input : inputs_) outputs_.push_back(const_cast<void*>(input));
        return reduce_in_rank_order(call.op, call.in.dtype, inputs_, outputs_, end - begin);
      }
      case CommCall::reduce_scatter:
        post_addresses(group.rank * call.out.bytes());
        outputs_.assign(1, call.out.data);
        return reduce_in_rank_order(call.op, call.out.dtype, inputs_, outputs_, call.out.numel());
      case CommCall::all_gather: return gather(call.in.bytes(), call.out.data);
      case CommCall::broadcast: return copy(slot_of(call.peer).data, call.out.data, call.out.bytes());
      default: return;
    }
  }

  // Collects the addresses that the ranks have published, each plus `offset` bytes.
  void post_addresses(int64_t offset) {
    inputs_.clear();
    for (int r = 0; r < group.size(); ++r) inputs_.push_back(static_cast<std::byte*>(slot_of(r).data) + offset);
  }

  // Concatenates the ranks' tensors, in rank order. Each rank copies its own first, so that they do not all read from
  // the same one.
  void gather(int64_t bytes, void* to) {
    post_addresses(0);
    for (int i = 0; i < group.size(); ++i) {
      const int from = (group.rank + i) % group.size();
      copy(inputs_[static_cast<size_t>(from)], static_cast<std::byte*>(to) + from * bytes, bytes);
    }
  }

  void receive(const Call& call, const CallSignature& mine, SpanClock& clock) {
    const int from_world = group.world_rank(call.peer);
    const auto [theirs, moves_ns] = barrier_->inboxes[static_cast<size_t>(group.rank)]->take(
        call.peer, mine, call.out.data, *barrier_->world, from_world, group.name);
    clock.set_wire(moves_ns);
    if (theirs != mine) fail_mismatch(group.name, from_world, theirs, group.world_rank(), mine);
  }

  static void copy(const void* from, void* to, int64_t bytes) {
    if (bytes > 0 && from != to) std::memcpy(to, from, static_cast<size_t>(bytes));
  }

  const Barrier::Slot& slot_of(int rank) const { return barrier_->members[static_cast<size_t>(rank)].slots[turn_]; }

  // Publishes this rank's call and waits for all ranks; returns the time at which the last one called. Throws if a call
  // differs from the first rank's.
  int64_t rendezvous(const CallSignature& mine, void* data) {
    turn_ = mine.sequence % 2;
    barrier_->members[static_cast<size_t>(group.rank)].slots[turn_] = {mine, data};
    const int64_t matched_ns = barrier_->wait(group.rank, name_of(mine.call));
    const CallSignature& first = slot_of(0).signature;
    for (int r = 1; r < group.size(); ++r)
      if (const CallSignature& other = slot_of(r).signature; other != first)
        fail_mismatch(group.name, group.world_rank(0), first, group.world_rank(r), other);
    return matched_ns;
  }

  std::shared_ptr<Barrier> barrier_;
  size_t turn_ = 0;                  // index of the current call's slots
  std::vector<const void*> inputs_;  // of one call; members, so that a call allocates nothing
  std::vector<void*> outputs_;
};

// Prefixes the error with its rank, unless it concerns all ranks: several failed alike, or their settings are wrong.
[[noreturn]] void rethrow_with_rank(int rank, bool alone, const std::exception_ptr& cause) {
  const auto text = [&](const std::exception& e) {
    return alone ? "rank " + std::to_string(rank) + ": " + e.what() : std::string(e.what());
  };
  try {
    std::rethrow_exception(cause);
  } catch (const ConfigError& e) {
    if (e.lack == Lack::none) throw;
    throw ConfigError(text(e), e.lack);
  } catch (const DataError& e) {
    throw DataError(text(e));
  } catch (const IoError& e) {
    throw IoError(text(e));
  } catch (const NumericsError& e) {
    throw NumericsError(text(e), e.rank);
  } catch (const TimeoutError& e) {
    throw TimeoutError(text(e));
  } catch (const std::bad_alloc& e) {
    throw ConfigError(text(e));
  } catch (const std::exception& e) {
    throw Error(text(e));
  }
}

}  // namespace

void run_thread_ranks(int n, const std::function<void(Communicator& world)>& rank_main) {
  if (n < 1) throw ConfigError("ranks: expected at least 1, found " + std::to_string(n));
  const auto world = std::make_shared<ThreadWorld>(n);
  const CommGroup all = CommGroup::world(0, n);
  const auto barrier = std::make_shared<Barrier>(world, all.world_ranks, all.name);
  const auto run = [&](int rank) {
    try {
      CommGroup group = all;
      group.rank = rank;
      group.number = barrier->number;
      Communicator communicator(std::make_shared<ThreadBackEnd>(barrier, std::move(group)));
      rank_main(communicator);
    } catch (const PeerFailure&) {
      // The world knows the failure that caused this one.
    } catch (const std::exception& e) {
      world->fail(rank, e.what(), std::current_exception());
    }
    world->end(rank);
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(n));
  try {
    for (int rank = 0; rank < n; ++rank) threads.emplace_back(run, rank);
  } catch (const std::exception& e) {  // std::system_error, or std::bad_alloc
    // The ranks that have started wait for the others, which will never arrive.
    const auto rank = static_cast<int>(threads.size());
    const ConfigError error("ranks: the system has no thread for each of " + std::to_string(n) + ": " + e.what());
    world->fail(rank, error.what(), std::make_exception_ptr(error));
  }
  for (std::thread& thread : threads) thread.join();
  if (const auto failure = world->failure(); failure.rank >= 0)
    rethrow_with_rank(failure.rank, n > 1 && !failure.shared,
                      failure.cause ? failure.cause : std::make_exception_ptr(Error(failure.why)));
}

}  // namespace trivet
