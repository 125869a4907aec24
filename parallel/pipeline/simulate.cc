#include "parallel/pipeline/simulate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <optional>
#include <queue>
#include <utility>

#include "base/check.h"

namespace trivet {

double StageCosts::of(OpKind kind) const {
  const double backward = backward_input + backward_weight - whole_saves;
  return std::array{forward, backward, backward_input, backward_weight}[static_cast<size_t>(kind)];
}

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// A value that flows between neighbouring stages: one for each (payload, receiving stage, micro-batch).
struct Value {
  double there = kNever;  // when the receiving stage can first use it
  Op maker;
  std::optional<Channel> channel;  // empty: both stages are on the same rank
  size_t ticket = 0;               // its place in the channel's queue
};

struct ChannelState {
  size_t sent = 0;
  size_t taken = 0;
  std::optional<size_t> waiting;  // the Value that the sender could not send yet
};

struct RankState {
  size_t next = 0;       // the running op or, if none, the next one
  bool engaged = false;  // runs `next`, or will at a known time
  bool held_up = false;  // its last result is blocked by a full channel
  double free_at = 0;    // if sends block: the end of its last send
};

struct RankEvent {
  enum class Kind : uint8_t { start, end } kind;
  double time;
  size_t sequence;  // events of equal time run in the order in which they were queued: runs are reproducible
  int rank;
  bool operator>(const RankEvent& other) const {
    return time != other.time ? time > other.time : sequence > other.sequence;
  }
};

class Engine {
 public:
  Engine(const Schedule& schedule, const Costs& costs)
      : schedule_(schedule),
        costs_(costs),
        ranks_(size(schedule.p)),
        values_(2 * size(schedule.stages()) * size(schedule.m)),
        forward_done_(values_.size() / 2),
        input_half_done_(values_.size() / 2),
        channels_(4 * ranks_.size()),
        wire_free_at_(2 * ranks_.size()) {
    size_t ops = 0;
    for (const Program& program : schedule.programs) ops += program.size();
    timeline_.ops.reserve(ops);
  }

  void run() {
    for (int rank = 0; rank < schedule_.p; ++rank) boundary(rank, nullptr, 0);
    while (!events_.empty()) {
      const RankEvent event = events_.top();
      events_.pop();
      if (event.kind == RankEvent::Kind::start) start(event.rank, event.time);
      else end(event.rank, event.time);
    }
  }

  Timeline take_timeline() {
    timeline_.unit = costs_.unit;
    timeline_.p = schedule_.p;
    timeline_.v = schedule_.v;
    timeline_.map = schedule_.map;
    return std::move(timeline_);
  }

  std::vector<StuckRank> stuck() const {
    std::vector<StuckRank> stuck;
    for (int rank = 0; rank < schedule_.p; ++rank) {
      const RankState& state = ranks_[size(rank)];
      if (state.next < program(rank).size() || state.held_up)
        stuck.push_back({rank, state.next, what_it_waits_for(rank)});
    }
    return stuck;
  }

 private:
  static size_t size(int n) { return static_cast<size_t>(n); }
  const Program& program(int rank) const { return schedule_.programs[size(rank)]; }

  size_t number_of(int rank, const Op& op) const {
    return size(schedule_.stage_of(rank, op.chunk)) * size(schedule_.m) + size(op.microbatch);
  }
  // The value that an op receives from, or sends to, its neighbouring stage; empty at the ends of the model.
  std::optional<size_t> input_of(int rank, const Op& op) const { return value_of(rank, op, 0); }
  std::optional<size_t> result_of(int rank, const Op& op) const { return value_of(rank, op, 1); }
  std::optional<size_t> value_of(int rank, const Op& op, int hops) const {
    const int step = op.kind == OpKind::forward ? 1 : -1, taker = schedule_.stage_of(rank, op.chunk) + hops * step;
    const auto exists = [&](int stage) { return stage >= 0 && stage < schedule_.stages(); };
    if (op.kind == OpKind::backward_weight || !exists(taker) || !exists(taker - step)) return std::nullopt;
    return (step > 0 ? 0 : values_.size() / 2) + size(taker) * size(schedule_.m) + size(op.microbatch);
  }

  // In both stage maps the ranks form a ring: each sends only to the next or the previous one.
  size_t wire_of(const Channel& channel) const {
    return 2 * size(channel.from) + (channel.to == (channel.from + 1) % schedule_.p ? 0 : 1);
  }
  size_t index_of(const Channel& channel) const { return 2 * wire_of(channel) + static_cast<size_t>(channel.payload); }
  ChannelState& state_of(const Channel& channel) { return channels_[index_of(channel)]; }
  const ChannelState& state_of(const Channel& channel) const { return channels_[index_of(channel)]; }

  void push(RankEvent::Kind kind, double time, int rank) { events_.push({kind, time, sequence_++, rank}); }

  // The kind of op on the same rank that must still run before `op`; empty: it has run, or there is none.
  std::optional<OpKind> missing_before(int rank, const Op& op) const {
    const bool is_weight_half = op.kind == OpKind::backward_weight;
    if (op.kind == OpKind::forward) return std::nullopt;
    if ((is_weight_half ? input_half_done_ : forward_done_)[number_of(rank, op)]) return std::nullopt;
    return is_weight_half ? OpKind::backward_input : OpKind::forward;
  }

  // Starts the rank's next op at `now`, or when its input arrives if that time is known. Called after every change that
  // may unblock the rank.
  void go_on(int rank, double now) {
    RankState& state = ranks_[size(rank)];
    if (state.engaged || state.held_up || state.next == program(rank).size()) return;
    const Op& op = program(rank)[state.next];
    if (missing_before(rank, op)) return;
    double when = std::max(now, state.free_at);
    if (const auto input = input_of(rank, op)) {
      const Value& value = values_[*input];
      if (value.there == kNever || behind_others(value)) return;
      when = std::max(when, value.there);
    }
    state.engaged = true;
    push(RankEvent::Kind::start, when, rank);
  }

  void start(int rank, double now) {
    const Op& op = program(rank)[ranks_[size(rank)].next];
    if (const auto channel = schedule_.receives(rank, op)) {
      ChannelState& queue = state_of(*channel);
      ++queue.taken;
      if (const auto waiting = std::exchange(queue.waiting, std::nullopt)) {
        ranks_[size(channel->from)].held_up = false;
        send(*waiting, now);
        go_on(channel->from, now);
      }
    }
    const auto& stages = costs_.stages;
    const double cost = stages[stages.size() == 1 ? 0 : size(schedule_.stage_of(rank, op.chunk))].of(op.kind);
    timeline_.ops.push_back({rank, op, now, now + cost});
    push(RankEvent::Kind::end, now + cost, rank);
  }

  void end(int rank, double now) {
    RankState& state = ranks_[size(rank)];
    const Op& op = program(rank)[state.next++];
    state.engaged = false;
    if (op.kind == OpKind::forward) forward_done_[number_of(rank, op)] = true;
    if (op.kind == OpKind::backward_input) input_half_done_[number_of(rank, op)] = true;
    boundary(rank, &op, now);
  }

  // Between two ops: sends the result of the one that ended, and continues with the next.
  void boundary(int rank, const Op* ended, double now) {
    if (const auto result = ended ? result_of(rank, *ended) : std::nullopt) {
      Value& value = values_[*result];
      value.maker = *ended;
      value.channel = schedule_.sends(rank, *ended);
      if (!value.channel) {
        value.there = now;
      } else if (full(state_of(*value.channel))) {
        state_of(*value.channel).waiting = *result;
        ranks_[size(rank)].held_up = true;
      } else {
        send(*result, now);
      }
    }
    go_on(rank, now);
  }

  bool full(const ChannelState& queue) const {
    return costs_.channel_depth > 0 && queue.sent - queue.taken == size(costs_.channel_depth);
  }
  bool behind_others(const Value& value) const {
    return value.channel && value.ticket != state_of(*value.channel).taken;
  }

  void send(size_t number, double now) {
    Value& value = values_[number];
    const Channel& channel = *value.channel;
    double& wire_free_at = wire_free_at_[wire_of(channel)];
    const double start = std::max(now, wire_free_at);
    wire_free_at = start + (costs_.bandwidth > 0 ? costs_.bytes / costs_.bandwidth : 0);
    value.there = wire_free_at + costs_.latency;
    value.ticket = state_of(channel).sent++;
    timeline_.transfers.push_back({channel, value.maker, start, value.there, costs_.bytes});
    if (costs_.blocking) ranks_[size(channel.from)].free_at = value.there;
    go_on(channel.to, now);
  }

  // ---- what went wrong

  std::string what_it_waits_for(int rank) const {
    const RankState& state = ranks_[size(rank)];
    const bool chunks = schedule_.v > 1;
    if (state.held_up) {
      const Op& last = program(rank)[state.next - 1];
      return fmt::format("room for the result of {} in the channel to rank {}", to_string(last, chunks),
                         schedule_.sends(rank, last)->to);
    }
    const Op& op = program(rank)[state.next];
    if (const auto kind = missing_before(rank, op))
      return fmt::format("{} on its own rank before it", to_string({*kind, op.microbatch, op.chunk}, chunks));
    const int source = schedule_.stage_of(rank, op.chunk) + (op.kind == OpKind::forward ? -1 : 1);
    const Op maker{op.kind, op.microbatch, schedule_.chunk_of(source)};
    const std::string text = fmt::format("{} of rank {}", to_string(maker, chunks), schedule_.rank_of(source));
    if (values_[*input_of(rank, op)].there == kNever) return text;
    return text + ", which is queued in the channel after a message that this rank takes later";
  }

  const Schedule& schedule_;
  const Costs& costs_;
  std::vector<RankState> ranks_;
  std::vector<Value> values_;                         // activations, then gradients: [payload][stage][micro-batch]
  std::vector<bool> forward_done_, input_half_done_;  // [stage][micro-batch]
  std::vector<ChannelState> channels_;                // [rank][next or previous][payload]
  std::vector<double> wire_free_at_;                  // [rank][next or previous]
  std::priority_queue<RankEvent, std::vector<RankEvent>, std::greater<>> events_;
  size_t sequence_ = 0;
  Timeline timeline_;
};

void check_costs(const Schedule& schedule, const Costs& costs) {
  const size_t given = costs.stages.size(), stages = static_cast<size_t>(schedule.stages());
  if (given != 1 && given != stages)
    throw ConfigError(fmt::format("costs are given for {} stages, but the schedule has {}", given, stages));
  const auto possible = [](double cost) { return std::isfinite(cost) && cost >= 0; };
  bool good = possible(costs.latency) && possible(costs.bytes) && possible(costs.bandwidth) && costs.channel_depth >= 0;
  for (const StageCosts& stage : costs.stages)
    good = good && possible(stage.forward) && possible(stage.backward_input) && possible(stage.backward_weight) &&
           possible(stage.of(OpKind::backward));
  if (!good) throw ConfigError("a cost of the simulation is negative or not a number");
}

}  // namespace

std::string to_string(const Schedule& schedule, const StuckRank& stuck) {
  const Program& program = schedule.programs[static_cast<size_t>(stuck.rank)];
  const std::string at = stuck.next < program.size() ? "before " + to_string(program[stuck.next], schedule.v > 1)
                                                     : std::string("after its last op");
  return fmt::format("rank {} is stuck {} (op {} of {}): it waits for {}", stuck.rank, at, stuck.next, program.size(),
                     stuck.waits_for);
}

Timeline simulate(const Schedule& schedule, const Costs& costs) {
  check_costs(schedule, costs);
  Engine engine(schedule, costs);
  engine.run();
  if (const auto stuck = engine.stuck(); !stuck.empty()) {
    std::string text = "the schedule cannot run to its end:";
    for (const StuckRank& rank : stuck) text += "\n  " + to_string(schedule, rank);
    throw ConfigError(text);
  }
  return engine.take_timeline();
}

std::vector<StuckRank> find_stuck_ranks(const Schedule& schedule, const Costs& costs) {
  check_costs(schedule, costs);
  Engine engine(schedule, costs);
  engine.run();
  return engine.stuck();
}

}  // namespace trivet
