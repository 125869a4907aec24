#include "parallel/comm/mpi_comm.h"

#include <algorithm>

#include "base/host.h"
#include "base/utf8.h"
#include "parallel/comm/mpi_collective.h"
#include "parallel/comm/world.h"

namespace trivet {
namespace {

class MpiBackEnd : public HostBackEnd {
 public:
  MpiBackEnd(MpiProcess& process, CommGroup of)
      : HostBackEnd(std::move(of)),
        process_(process),
        collective_(process.progress, group),
        receive_(process.progress, group) {
    check(mpi_tag(group, MpiTag::transfer_data) <= process.progress.mpi().max_tag(),
          "too many groups: this MPI library has tags up to " + std::to_string(process.progress.mpi().max_tag()));
  }

  std::shared_ptr<CommBackEnd> split(const std::vector<int>& members, CommGroup part) override {
    struct Card {
      int64_t next_group, members;
    };
    uint64_t hash = members.size();
    for (const int member : members) hash = transfer_id(hash, member, 0, 0);
    std::vector<Card> cards(static_cast<size_t>(group.size()));
    cards[static_cast<size_t>(group.rank)] = {process_.next_group, static_cast<int64_t>(hash)};
    if (group.size() > 1)
      guarded([&] {
        constexpr int64_t kWords = sizeof(Card) / sizeof(int64_t);
        const Call gather{.kind = CommCall::split,
                          .in = {&cards[static_cast<size_t>(group.rank)], DType::i64, {kWords}},
                          .out = {cards.data(), DType::i64, {group.size() * kWords}}};
        collective_.perform(gather, next_signature(gather));
        for (const int member : members)
          if (part.rank >= 0 && cards[static_cast<size_t>(member)].members != static_cast<int64_t>(hash))
            fail_split(group, part.name, member);
      });
    // A number that no rank of this group has used yet. The new groups can share it, because they are disjoint.
    for (const Card& card : cards) part.number = std::max(part.number, static_cast<uint64_t>(card.next_group));
    process_.next_group = static_cast<int>(part.number) + 1;
    return part.rank < 0 ? nullptr : std::make_shared<MpiBackEnd>(process_, std::move(part));
  }

  void abort(const std::string& why) noexcept override { process_.progress.halt(why); }
  Failure failure() const override { return process_.progress.failure(); }

 protected:
  void move(const Call& call, const CallSignature& mine, SpanClock& clock) override {
    if (call.kind != CommCall::transfer) {
      collective_.perform(call, mine);
      clock.set_wire(collective_.matched_ns());
    } else if (call.sends) {
      process_.sends.send(group, call.peer, mine, call.in.data);
    } else {
      clock.set_wire(receive_.receive(call.peer, mine, call.out.data));
    }
  }
  void failed(const std::exception& why) noexcept override {
    process_.progress.halt(why.what());  // ends the rank's other waits too
  }

 private:
  MpiProcess& process_;
  MpiCollective collective_;
  MpiReceive receive_;
};

}  // namespace

std::unique_ptr<Communicator> create_mpi_communicator(MpiProcess& process) {
  CommGroup world = CommGroup::world(process.progress.rank(), process.progress.size());
  world.number = 1;
  return std::make_unique<Communicator>(std::make_shared<MpiBackEnd>(process, std::move(world)));
}

bool built_with_mpi() { return true; }

void run_mpi_rank(const std::function<void(Communicator& world)>& rank_main) {
  MpiProcess process;
  MpiProgress& progress = process.progress;
  if (const int promised = launched_world_size(); promised != 0 && promised != progress.size()) {
    progress.finish();
    throw ConfigError("the launcher started " + std::to_string(promised) + " ranks, but MPI sees a world of " +
                      std::to_string(progress.size()) +
                      "; the MPI library does not understand this launcher (under srun it needs PMIx: try srun "
                      "--mpi=pmix, or mpirun inside the allocation)");
  }
  const auto report = [&](const char* what) {
    write_stderr("[rank " + std::to_string(progress.rank()) + "] " + printable(what) + "\n");
  };
  try {
    const auto world = create_mpi_communicator(process);
    rank_main(*world);
    progress.finish();
  } catch (const std::exception& e) {
    report(e.what());
    progress.abort_job(exit_code_of(e));
  }
}

}  // namespace trivet
