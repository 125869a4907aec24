#include "tests/support/random_schedule.h"

#include <algorithm>
#include <deque>
#include <map>

namespace trivet::test {

int draw(std::mt19937_64& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
}

namespace {

// What each rank could run next, given the messages in flight.
class Play {
 public:
  Play(Schedule& schedule, bool halves) : schedule_(schedule), halves_(halves) {
    schedule.programs.resize(static_cast<size_t>(schedule.p));
    to_defer_.resize(static_cast<size_t>(schedule.p));
    for (int microbatch = 0; microbatch < schedule.m; ++microbatch) inputs_[{0, false}].push_back(microbatch);
  }

  struct Move {
    int rank;
    Op op;
  };
  std::vector<Move> moves() const {
    std::vector<Move> found;
    for (const auto& [edge, inputs] : inputs_)
      if (!inputs.empty() && is_at_front(edge)) {
        const int rank = schedule_.rank_of(edge.stage), chunk = schedule_.chunk_of(edge.stage);
        const int microbatch = inputs.front();
        if (!edge.gradient) found.push_back({rank, {OpKind::forward, microbatch, chunk}});
        else if (!defers(rank, chunk)) found.push_back({rank, {OpKind::backward, microbatch, chunk}});
        if (edge.gradient && halves_) found.push_back({rank, {OpKind::backward_input, microbatch, chunk}});
      }
    for (int rank = 0; rank < schedule_.p; ++rank)
      if (const auto& queue = to_defer_[static_cast<size_t>(rank)]; !queue.empty())
        found.push_back({rank, queue.front()});
    return found;
  }

  void make(const Move& move) {
    const auto& [rank, op] = move;
    schedule_.programs[static_cast<size_t>(rank)].push_back(op);
    if (op.kind == OpKind::backward_weight) {
      to_defer_[static_cast<size_t>(rank)].pop_front();
      return;
    }
    const int stage = schedule_.stage_of(rank, op.chunk), last = schedule_.stages() - 1;
    const bool gradient = op.kind != OpKind::forward;
    inputs_[{stage, gradient}].pop_front();
    if (const auto channel = schedule_.receives(rank, op)) channels_[*channel].pop_front();
    if (op.kind == OpKind::backward_input)
      to_defer_[static_cast<size_t>(rank)].push_back({OpKind::backward_weight, op.microbatch, op.chunk});
    if (gradient && stage == 0) return;
    const Edge next = !gradient && stage == last ? Edge{last, true} : Edge{gradient ? stage - 1 : stage + 1, gradient};
    inputs_[next].push_back(op.microbatch);
    if (const auto channel = schedule_.sends(rank, op)) channels_[*channel].push_back(next);
  }

 private:
  // True if weight gradients of an earlier micro-batch have yet to be added to the chunk's.
  bool defers(int rank, int chunk) const {
    return std::ranges::any_of(to_defer_[static_cast<size_t>(rank)], [&](const Op& op) { return op.chunk == chunk; });
  }

  // An input of a stage: activations or gradients.
  struct Edge {
    int stage = 0;
    bool gradient = false;
    auto operator<=>(const Edge&) const = default;
  };

  bool is_at_front(const Edge& edge) const {
    const int rank = schedule_.rank_of(edge.stage);
    const Op op{edge.gradient ? OpKind::backward : OpKind::forward, 0, schedule_.chunk_of(edge.stage)};
    const auto channel = schedule_.receives(rank, op);
    return !channel || channels_.at(*channel).front() == edge;
  }

  Schedule& schedule_;
  const bool halves_;
  std::map<Edge, std::deque<int>> inputs_;        // micro-batches that have arrived
  std::map<Channel, std::deque<Edge>> channels_;  // messages of several stages may share a channel
  std::vector<std::deque<Op>> to_defer_;          // [rank] weight halves, in FIFO order
};

}  // namespace

Schedule random_schedule(std::mt19937_64& random, int p, int v, int m, StageMap map, bool halves) {
  Schedule schedule{.kind = "random", .p = p, .m = m, .v = v, .map = map};
  Play play(schedule, halves);
  for (auto moves = play.moves(); !moves.empty(); moves = play.moves())
    play.make(moves[static_cast<size_t>(draw(random, 0, static_cast<int>(moves.size()) - 1))]);
  return schedule;
}

}  // namespace trivet::test
