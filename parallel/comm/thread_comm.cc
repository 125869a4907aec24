#include "parallel/comm/thread_comm.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "parallel/comm/rank_order_reduce.h"
#include "parallel/comm/thread_mailbox.h"
#include "parallel/comm/thread_world.h"

namespace trivet {
namespace {

// What all ranks of a group share.
class Board {
 public:
  // `world_ranks`: of the members, in group order.
  Board(std::shared_ptr<ThreadWorld> world, std::vector<int> world_ranks, std::string name)
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

  // What a rank publishes of one call.
  struct Post {
    CallSignature signature;
    void* data = nullptr;
  };
  // A rank's entry. Written by its rank before meet(), read by the others after it. Calls take turns with the posts:
  // the first rank of the next call may write while the last of this one still reads.
  struct Member {
    Post posts[2];
    std::vector<int> split_into;   // members of the group that it will be in
    std::shared_ptr<Board> child;  // of a split: made by the first of these
    uint64_t meetings = 0;         // guarded by the board
  };

  // Waits until every rank of the group has come to the same meeting. `rank` is of the group.
  void meet(int rank, const char* call) {
    std::unique_lock lock(point_->mutex);
    if (world->failed()) world->throw_peer_failure();
    const uint64_t meeting = arrive(rank);
    while (held_ < meeting) {
      if (world->failed()) world->throw_peer_failure();
      for (size_t i = 0; i < members.size(); ++i)
        if (members[i].meetings < meeting && world->ended(world_ranks[i]))
          fail("group '" + name + "': rank " + std::to_string(world_ranks[static_cast<size_t>(rank)]) + " waits in " +
               call + ", but rank " + std::to_string(world_ranks[i]) + " has ended without that call");
      point_->changed.wait(lock);
    }
  }

  // The meeting behind one in which ranks have begun to read each other's memory: nobody may leave, and give memory
  // back, while another reads. None waits for anything in between, so all come: a failure elsewhere does not end this
  // short wait.
  void leave(int rank) {
    std::unique_lock lock(point_->mutex);
    const uint64_t meeting = arrive(rank);
    point_->changed.wait(lock, [&] { return held_ >= meeting; });
  }

  const std::shared_ptr<ThreadWorld> world;
  const std::vector<int> world_ranks;
  const std::string name;
  const uint64_t number;  // unlike every other group's of the world
  std::vector<Member> members;
  std::vector<std::unique_ptr<Mailbox>> inboxes;  // one a receiver

 private:
  // The number of the meeting that the rank has come to; the last one to come opens it. REQUIRES: the lock.
  uint64_t arrive(int rank) {
    const uint64_t meeting = ++members[static_cast<size_t>(rank)].meetings;
    if (++present_ == members.size()) {
      present_ = 0;
      held_ = meeting;
      point_->changed.notify_all();
    }
    return meeting;
  }

  std::shared_ptr<WaitPoint> point_;
  size_t present_ = 0;  // ranks in the current meeting
  uint64_t held_ = 0;   // meetings that are over
};

class ThreadBackEnd : public HostBackEnd {
 public:
  ThreadBackEnd(std::shared_ptr<Board> board, CommGroup of) : HostBackEnd(std::move(of)), board_(std::move(board)) {}

  std::shared_ptr<CommBackEnd> split(const std::vector<int>& members, CommGroup part) override {
    std::shared_ptr<Board> child;
    guarded([&] {
      Board::Member& me = board_->members[static_cast<size_t>(group.rank)];
      me.split_into = members;
      rendezvous(next_signature({.kind = CommCall::split}), nullptr);
      if (part.rank >= 0)
        for (const int other : members)
          if (board_->members[static_cast<size_t>(other)].split_into != members)
            fail(split_mismatch_text(group, part.name, other));
      if (part.rank == 0) me.child = std::make_shared<Board>(board_->world, part.world_ranks, part.name);
      board_->meet(group.rank, "split");
      if (part.rank >= 0) child = board_->members[static_cast<size_t>(members.front())].child;
      board_->meet(group.rank, "split");
      me.child.reset();
    });
    if (!child) return nullptr;
    part.number = child->number;
    return std::make_shared<ThreadBackEnd>(std::move(child), std::move(part));
  }

  void abort(const std::string& why) noexcept override { board_->world->fail(group.world_rank(), why, nullptr); }
  Failure failure() const override { return board_->world->first_failure(); }

 protected:
  void move(const Call& call, const CallSignature& mine, SpanClock& clock) override {
    if (call.kind == CommCall::transfer) return call.sends ? send(call, mine) : receive(call, mine, clock);
    rendezvous(mine, call.in.data);
    clock.matched();
    if (call.kind == CommCall::barrier) return;
    // Meet, do my part, and stay until the others, who read my memory, have done theirs.
    try {
      take_part(call);
    } catch (...) {
      board_->leave(group.rank);
      throw;
    }
    board_->leave(group.rank);
  }

  void failed(const std::exception& why) noexcept override {
    if (!dynamic_cast<const PeerFailure*>(&why))
      board_->world->fail(group.world_rank(), why.what(), std::current_exception());
  }

 private:
  void take_part(const Call& call) {
    switch (call.kind) {
      case CommCall::all_reduce: {
        // Each rank owns one part: it adds the part of all ranks and writes the sum to all ranks. Nobody else reads it.
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
      case CommCall::all_gather: return gather(0, call.in.bytes(), call.out.data);
      case CommCall::all_to_all: {
        const int64_t part = call.in.bytes() / group.size();
        return gather(group.rank * part, part, call.out.data);
      }
      case CommCall::broadcast: return copy(post_of(call.peer).data, call.out.data, call.out.bytes());
      default: return;
    }
  }

  // Where the tensors that the ranks have published are, `offset` bytes on.
  void post_addresses(int64_t offset) {
    inputs_.clear();
    for (int r = 0; r < group.size(); ++r) inputs_.push_back(static_cast<std::byte*>(post_of(r).data) + offset);
  }

  // The same bytes of what each rank has published, in rank order. Each rank starts with its own, so that they do not
  // all read the same one.
  void gather(int64_t offset, int64_t bytes, void* to) {
    post_addresses(offset);
    for (int i = 0; i < group.size(); ++i) {
      const int from = (group.rank + i) % group.size();
      copy(inputs_[static_cast<size_t>(from)], static_cast<std::byte*>(to) + from * bytes, bytes);
    }
  }

  void send(const Call& call, const CallSignature& mine) {
    board_->inboxes[static_cast<size_t>(call.peer)]->put(group.rank, mine, call.in.data);
  }

  void receive(const Call& call, const CallSignature& mine, SpanClock& clock) {
    const int from_world = group.world_rank(call.peer);
    const auto [theirs, sent_ns] = board_->inboxes[static_cast<size_t>(group.rank)]->take(
        call.peer, mine, call.out.data, *board_->world, from_world, group.name);
    clock.matched(sent_ns);
    if (theirs != mine) fail(mismatch_text(group.name, from_world, theirs, group.world_rank(), mine));
  }

  static void copy(const void* from, void* to, int64_t bytes) {
    if (bytes > 0 && from != to) std::memcpy(to, from, static_cast<size_t>(bytes));
  }

  // What the rank of this group has published of the current call.
  const Board::Post& post_of(int rank) const { return board_->members[static_cast<size_t>(rank)].posts[turn_]; }

  // Publishes my call and waits for all ranks; throws when theirs differ from the first rank's.
  void rendezvous(const CallSignature& mine, void* data) {
    turn_ = mine.sequence % 2;
    board_->members[static_cast<size_t>(group.rank)].posts[turn_] = {mine, data};
    board_->meet(group.rank, name_of(Call{.kind = mine.call}));
    const CallSignature& first = post_of(0).signature;
    for (int r = 1; r < group.size(); ++r)
      if (const CallSignature& other = post_of(r).signature; other != first)
        fail(mismatch_text(group.name, group.world_rank(0), first, group.world_rank(r), other));
  }

  std::shared_ptr<Board> board_;
  size_t turn_ = 0;                  // which posts the current call uses
  std::vector<const void*> inputs_;  // of one call; members so that a call allocates nothing
  std::vector<void*> outputs_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> create_thread_communicators(std::shared_ptr<ThreadWorld> world, int size) {
  CommGroup group{.name = "world", .world_ranks = std::vector<int>(static_cast<size_t>(size))};
  std::iota(group.world_ranks.begin(), group.world_ranks.end(), 0);
  auto board = std::make_shared<Board>(std::move(world), group.world_ranks, group.name);
  group.number = board->number;
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (group.rank = 0; group.rank < size; ++group.rank)
    communicators.push_back(std::make_unique<Communicator>(std::make_shared<ThreadBackEnd>(board, group)));
  return communicators;
}

}  // namespace trivet
