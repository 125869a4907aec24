#include "parallel/comm/thread_comm.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>

#include "parallel/comm/call_signature.h"
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
    int color = 0, key = 0;
    std::shared_ptr<Board> child;  // of a split: made by the first rank of a colour
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

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Board> board, int rank, Category category)
      : board_(std::move(board)), rank_(rank), category_(category) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(board_->members.size()); }

  void all_reduce(Tensor full, Reduce op, Stream& stream) override {
    if (size() == 1) return;
    run(stream, {CommCall::all_reduce, full.dtype, op, -1, full.numel()}, "all_reduce", full, [this, full, op] {
      // Each rank owns one part: it adds the part of all ranks and writes the sum to all ranks. Nobody else reads it.
      const int64_t begin = full.numel() * rank_ / size(), end = full.numel() * (rank_ + 1) / size();
      std::vector<const void*>& in = inputs_;
      std::vector<void*>& out = outputs_;
      in.clear();
      out.clear();
      for (size_t r = 0; r < board_->members.size(); ++r) {
        out.push_back(static_cast<std::byte*>(post_of(r).data) + begin * size_of(full.dtype));
        in.push_back(out.back());
      }
      reduce_in_rank_order(op, full.dtype, in, out, end - begin);
    });
  }

  void reduce_scatter(Tensor full, Tensor shard, Reduce op, Stream& stream) override {
    check_shards("reduce_scatter", full, shard, rank_, size());
    if (size() == 1) return copy_alone(full, shard, "reduce_scatter", stream);
    run(stream, {CommCall::reduce_scatter, full.dtype, op, -1, full.numel()}, "reduce_scatter", full,
        [this, shard, op] {
          inputs_.clear();
          for (size_t r = 0; r < board_->members.size(); ++r)
            inputs_.push_back(static_cast<std::byte*>(post_of(r).data) + rank_ * shard.bytes());
          outputs_.assign(1, shard.data);
          reduce_in_rank_order(op, shard.dtype, inputs_, outputs_, shard.numel());
        });
  }

  void all_gather(Tensor shard, Tensor full, Stream& stream) override {
    check_shards("all_gather", full, shard, rank_, size());
    if (size() == 1) return copy_alone(shard, full, "all_gather", stream);
    run(stream, {CommCall::all_gather, full.dtype, Reduce::sum, -1, full.numel()}, "all_gather", shard, full.bytes(),
        [this, shard, full] {
          // Each rank starts with its own shard, so that they do not all read the same one.
          for (int i = 0; i < size(); ++i) {
            const int from = (rank_ + i) % size();
            copy(post_of(static_cast<size_t>(from)).data, static_cast<std::byte*>(full.data) + from * shard.bytes(),
                 shard.bytes());
          }
        });
  }

  void broadcast(Tensor data, int root, Stream& stream) override {
    check(root >= 0 && root < size(), "broadcast from a rank outside the group");
    if (size() == 1) return;
    run(stream, {CommCall::broadcast, data.dtype, Reduce::sum, root, data.numel()}, "broadcast", data,
        [this, data, root] { copy(post_of(static_cast<size_t>(root)).data, data.data, data.bytes()); });
  }

  void send(Tensor data, int to, Stream& stream) override {
    check(to >= 0 && to < size() && to != rank_, "send to a rank outside the group, or to itself");
    stream.run({"send", category_, data.bytes()}, [this, data, to](SpanClock& clock) {
      guarded([&] {
        const uint64_t sequence = sent_[to]++;
        clock.set_transfer_id(transfer_id(board_->number, world_rank(), world_rank(to), sequence));
        Mailbox& inbox = *board_->inboxes[static_cast<size_t>(to)];
        inbox.put(rank_, {CommCall::transfer, data.dtype, Reduce::sum, -1, data.numel(), sequence}, data.data);
      });
    });
  }

  void recv(Tensor data, int from, Stream& stream) override {
    check(from >= 0 && from < size() && from != rank_, "recv from a rank outside the group, or from itself");
    stream.run({"recv", category_, data.bytes()}, [this, data, from](SpanClock& clock) {
      guarded([&] {
        const CallSignature mine{CommCall::transfer, data.dtype, Reduce::sum, -1, data.numel(), received_[from]++};
        const int from_world = world_rank(from);
        clock.set_transfer_id(transfer_id(board_->number, from_world, world_rank(), mine.sequence));
        const auto [theirs, sent_ns] = board_->inboxes[static_cast<size_t>(rank_)]->take(
            from, mine, data.data, *board_->world, from_world, board_->name);
        clock.matched(sent_ns);
        if (theirs != mine) fail(mismatch_text(board_->name, from_world, theirs, world_rank(), mine));
      });
    });
  }

  void barrier() override {
    guarded([&] { rendezvous({}, "barrier", nullptr); });
  }

  std::unique_ptr<Communicator> split(int color, int key, std::string name, Category category) override {
    std::shared_ptr<Board> child;
    int new_rank = 0;
    guarded([&] {
      Board::Member& me = board_->members[static_cast<size_t>(rank_)];
      me.color = color;
      me.key = key;
      rendezvous({CommCall::split}, "split", nullptr);
      std::vector<int> group;  // ranks of this group with my colour, in the new order
      for (int r = 0; r < size(); ++r)
        if (board_->members[static_cast<size_t>(r)].color == color) group.push_back(r);
      std::stable_sort(group.begin(), group.end(), [&](int a, int b) {
        return board_->members[static_cast<size_t>(a)].key < board_->members[static_cast<size_t>(b)].key;
      });
      new_rank = static_cast<int>(std::find(group.begin(), group.end(), rank_) - group.begin());
      if (new_rank == 0) {
        std::vector<int> world_ranks;
        for (int r : group) world_ranks.push_back(board_->world_ranks[static_cast<size_t>(r)]);
        me.child = std::make_shared<Board>(board_->world, std::move(world_ranks), name);
      }
      board_->meet(rank_, "split");
      child = board_->members[static_cast<size_t>(group.front())].child;
      board_->meet(rank_, "split");
      me.child.reset();
    });
    return std::make_unique<ThreadCommunicator>(std::move(child), new_rank, category);
  }

  void abort(const std::string& why) noexcept override { board_->world->fail(world_rank(), why, nullptr); }
  Failure failure() const override { return board_->world->first_failure(); }

 private:
  int world_rank() const { return world_rank(rank_); }
  int world_rank(int rank) const { return board_->world_ranks[static_cast<size_t>(rank)]; }

  static void copy(const void* from, void* to, int64_t bytes) {
    if (bytes > 0 && from != to) std::memcpy(to, from, static_cast<size_t>(bytes));
  }

  void copy_alone(Tensor from, Tensor to, const char* call, Stream& stream) {
    if (from.data != to.data)
      stream.run({call, category_, from.bytes()}, [from, to] { copy(from.data, to.data, from.bytes()); });
  }

  // Runs f; when it throws, every rank of the world learns of it.
  template <class F>
  void guarded(F&& f) {
    check(!busy_.exchange(true), "a communicator is used by two threads at once");
    try {
      f();
    } catch (const PeerFailure&) {
      busy_ = false;
      throw;
    } catch (const std::exception& e) {
      busy_ = false;
      board_->world->fail(world_rank(), e.what(), std::current_exception());
      throw;
    }
    busy_ = false;
  }

  // What the rank of this group has published of the current call.
  const Board::Post& post_of(size_t rank) const { return board_->members[rank].posts[turn_]; }

  // Publishes my call and waits for all ranks; throws when theirs differ from the first rank's.
  void rendezvous(CallSignature signature, const char* call, void* data) {
    turn_ = sequence_ % 2;
    Board::Post& mine = board_->members[static_cast<size_t>(rank_)].posts[turn_];
    mine = {signature, data};
    mine.signature.sequence = sequence_++;
    board_->meet(rank_, call);
    const CallSignature& first = post_of(0).signature;
    for (size_t r = 1; r < board_->members.size(); ++r)
      if (const CallSignature& other = post_of(r).signature; other != first)
        fail(mismatch_text(board_->name, board_->world_ranks[0], first, board_->world_ranks[r], other));
  }

  // One collective: meet, do my part, and stay until the others, who read my memory, have done theirs.
  template <class Work>
  void run(Stream& stream, const CallSignature& signature, const char* call, Tensor published, int64_t bytes,
           Work work) {
    stream.run({call, category_, bytes}, [this, signature, call, published, work](SpanClock& clock) {
      guarded([&] {
        rendezvous(signature, call, published.data);
        clock.matched();
        try {
          work();
        } catch (...) {
          board_->leave(rank_);
          throw;
        }
        board_->leave(rank_);
      });
    });
  }
  template <class Work>
  void run(Stream& stream, const CallSignature& signature, const char* call, Tensor published, Work work) {
    run(stream, signature, call, published, published.bytes(), std::move(work));
  }

  std::shared_ptr<Board> board_;
  int rank_;
  Category category_;
  uint64_t sequence_ = 0;
  size_t turn_ = 0;                          // which posts the current call uses
  std::map<int, uint64_t> sent_, received_;  // transfers so far, by peer
  std::vector<const void*> inputs_;          // of one reduction; members so that a call allocates nothing
  std::vector<void*> outputs_;
  std::atomic<bool> busy_ = false;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> create_thread_communicators(std::shared_ptr<ThreadWorld> world, int size) {
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  auto board = std::make_shared<Board>(std::move(world), std::move(ranks), "world");
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int r = 0; r < size; ++r)
    communicators.push_back(std::make_unique<ThreadCommunicator>(board, r, Category::comm_data));
  return communicators;
}

}  // namespace trivet
