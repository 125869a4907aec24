#include "parallel/comm/mpi_comm.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "parallel/comm/mpi_collective.h"

namespace trivet {
namespace {

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(MpiProcess& process, MpiGroup group, Category category)
      : process_(process),
        group_(std::move(group)),
        category_(category),
        sent_(static_cast<size_t>(size())),
        received_(static_cast<size_t>(size())),
        collective_(process.progress, group_),
        receive_(process.progress, group_) {
    check(group_.tag(MpiTag::transfer_data) <= process.progress.max_tag(),
          "too many groups: this MPI library has tags up to " + std::to_string(process.progress.max_tag()));
  }

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size(); }

  void all_reduce(Tensor full, Reduce op, Stream& stream) override {
    if (size() == 1) return;
    collective(stream, "all_reduce", full.bytes(), [this, full, op] { collective_.all_reduce(full, op); });
  }

  void reduce_scatter(Tensor full, Tensor shard, Reduce op, Stream& stream) override {
    check_shards("reduce_scatter", full, shard, rank(), size());
    if (size() == 1) return copy_alone(full, shard, "reduce_scatter", stream);
    collective(stream, "reduce_scatter", full.bytes(),
               [this, full, shard, op] { collective_.reduce_scatter(full, shard, op); });
  }

  void all_gather(Tensor shard, Tensor full, Stream& stream) override {
    check_shards("all_gather", full, shard, rank(), size());
    if (size() == 1) return copy_alone(shard, full, "all_gather", stream);
    collective(stream, "all_gather", full.bytes(), [this, shard, full] { collective_.all_gather(shard, full); });
  }

  void broadcast(Tensor data, int root, Stream& stream) override {
    check(root >= 0 && root < size(), "broadcast from a rank outside the group");
    if (size() == 1) return;
    collective(stream, "broadcast", data.bytes(), [this, data, root] { collective_.broadcast(data, root); });
  }

  void send(Tensor data, int to, Stream& stream) override {
    check(to >= 0 && to < size() && to != rank(), "send to a rank outside the group, or to itself");
    run(stream, "send", data.bytes(), [this, data, to](SpanClock& clock) {
      const CallSignature mine = transfer_signature(data, sent_[static_cast<size_t>(to)]++);
      clock.set_transfer_id(id_of_transfer(rank(), to, mine.sequence));
      process_.sends.send(group_, to, mine, data.data);
    });
  }

  void recv(Tensor data, int from, Stream& stream) override {
    check(from >= 0 && from < size() && from != rank(), "recv from a rank outside the group, or from itself");
    run(stream, "recv", data.bytes(), [this, data, from](SpanClock& clock) {
      const CallSignature mine = transfer_signature(data, received_[static_cast<size_t>(from)]++);
      clock.set_transfer_id(id_of_transfer(from, rank(), mine.sequence));
      clock.matched(receive_.receive(from, mine, data.data));
    });
  }

  void barrier() override {
    if (size() > 1) guarded([&] { collective_.barrier(); });
  }

  std::unique_ptr<Communicator> split(int color, int key, std::string name, Category category) override {
    struct Card {
      int64_t color, key, next_group;
    };
    std::vector<Card> cards(static_cast<size_t>(size()));
    cards[static_cast<size_t>(rank())] = {color, key, process_.next_group};
    const auto numbers = static_cast<int64_t>(sizeof(Card) / sizeof(int64_t));
    if (size() > 1)
      guarded([&] {
        collective_.all_gather({&cards[static_cast<size_t>(rank())], DType::i64, {numbers}},
                               {cards.data(), DType::i64, {size() * numbers}}, CommCall::split);
      });
    // A number that no rank of this group has used. The new groups share it: they share no rank.
    MpiGroup group{.number = 0, .rank = 0, .world_ranks = {}, .name = std::move(name)};
    for (const Card& card : cards) group.number = std::max(group.number, static_cast<int>(card.next_group));
    process_.next_group = group.number + 1;

    std::vector<int> members;
    for (int r = 0; r < size(); ++r)
      if (cards[static_cast<size_t>(r)].color == color) members.push_back(r);
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
      return cards[static_cast<size_t>(a)].key < cards[static_cast<size_t>(b)].key;
    });
    for (int r : members) {
      if (r == rank()) group.rank = static_cast<int>(group.world_ranks.size());
      group.world_ranks.push_back(group_.world_rank(r));
    }
    return std::make_unique<MpiCommunicator>(process_, std::move(group), category);
  }

  void abort(const std::string& why) noexcept override { process_.progress.halt(why); }
  Failure failure() const override { return process_.progress.failure(); }

 private:
  static CallSignature transfer_signature(const Tensor& data, uint64_t sequence) {
    return {CommCall::transfer, data.dtype, Reduce::sum, -1, data.numel(), sequence};
  }

  uint64_t id_of_transfer(int from, int to, uint64_t sequence) const {
    return transfer_id(static_cast<uint64_t>(group_.number), group_.world_rank(from), group_.world_rank(to), sequence);
  }

  void copy_alone(Tensor from, Tensor to, const char* call, Stream& stream) {
    if (from.data == to.data || from.bytes() == 0) return;
    stream.run({call, category_, from.bytes()},
               [from, to] { std::memcpy(to.data, from.data, static_cast<size_t>(from.bytes())); });
  }

  template <class F>
  void guarded(F&& f) {
    check(!busy_.exchange(true), "a communicator is used by two threads at once");
    try {
      f();
    } catch (const std::exception& e) {
      process_.progress.halt(e.what());  // the rank's other waits end too
      throw;
    }
    busy_ = false;
  }

  template <class Work>
  void run(Stream& stream, const char* call, int64_t bytes, Work work) {
    stream.run({call, category_, bytes}, [this, work](SpanClock& clock) { guarded([&] { work(clock); }); });
  }
  template <class Work>
  void collective(Stream& stream, const char* call, int64_t bytes, Work work) {
    run(stream, call, bytes, [this, work](SpanClock& clock) {
      work();
      clock.matched(collective_.matched_ns());
    });
  }

  MpiProcess& process_;
  const MpiGroup group_;
  const Category category_;
  std::vector<uint64_t> sent_, received_;  // transfers so far, by peer
  MpiCollective collective_;
  MpiReceive receive_;
  std::atomic<bool> busy_ = false;
};

}  // namespace

std::unique_ptr<Communicator> create_mpi_communicator(MpiProcess& process) {
  MpiGroup world{.number = 1, .rank = process.progress.rank(), .world_ranks = {}, .name = "world"};
  world.world_ranks.resize(static_cast<size_t>(process.progress.size()));
  std::iota(world.world_ranks.begin(), world.world_ranks.end(), 0);
  return std::make_unique<MpiCommunicator>(process, std::move(world), Category::comm_data);
}

}  // namespace trivet
