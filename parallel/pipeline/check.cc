#include "parallel/pipeline/check.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "base/check.h"
#include "parallel/pipeline/simulate.h"

namespace trivet {
namespace {

size_t size(int n) { return static_cast<size_t>(n); }

// Problems that keep the other checks from running.
std::vector<std::string> out_of_range(const Schedule& schedule) {
  if (schedule.p < 1 || schedule.m < 1 || schedule.v < 1)
    return {fmt::format("p = {}, m = {} and v = {} must be at least 1", schedule.p, schedule.m, schedule.v)};
  if (schedule.programs.size() != size(schedule.p))
    return {fmt::format("there are {} programs for p = {} ranks", schedule.programs.size(), schedule.p)};
  std::vector<std::string> problems;
  for (int rank = 0; rank < schedule.p; ++rank)
    for (const Op& op : schedule.programs[size(rank)])
      if (op.microbatch < 0 || op.microbatch >= schedule.m || op.chunk < 0 || op.chunk >= schedule.v)
        problems.push_back(
            fmt::format("rank {} runs {}, but m = {} and v = {}", rank, to_string(op, true), schedule.m, schedule.v));
  return problems;
}

// Rules 1 and 2, for one rank.
void check_program(const Schedule& schedule, int rank, std::vector<std::string>& problems) {
  const Program& program = schedule.programs[size(rank)];
  const bool chunks = schedule.v > 1;
  struct Seen {
    std::array<int, 4> count{};
    std::array<size_t, 4> at{};  // the index of the first op of each kind
  };
  std::vector<Seen> seen(size(schedule.v) * size(schedule.m));
  for (size_t i = 0; i < program.size(); ++i) {
    Seen& s = seen[size(program[i].chunk) * size(schedule.m) + size(program[i].microbatch)];
    const auto kind = static_cast<size_t>(program[i].kind);
    if (s.count[kind]++ == 0) s.at[kind] = i;
  }
  for (int chunk = 0; chunk < schedule.v; ++chunk)
    for (int i = 0; i < schedule.m; ++i) {
      const Seen& s = seen[size(chunk) * size(schedule.m) + size(i)];
      const auto [f, b, bi, bw] = s.count;
      const std::string of = fmt::format("rank {} (stage {}), micro-batch {}", rank, schedule.stage_of(rank, chunk), i);
      if (f != 1 || !((b == 1 && bi == 0 && bw == 0) || (b == 0 && bi == 1 && bw == 1))) {
        problems.push_back(fmt::format("{}: {} F, {} B, {} I, {} W; expected one F and either one B or one I and one W",
                                       of, f, b, bi, bw));
        continue;
      }
      const auto before = [&](OpKind first, OpKind second) {
        if (s.at[static_cast<size_t>(first)] > s.at[static_cast<size_t>(second)])
          problems.push_back(fmt::format("{}: {} comes before {}", of, to_string({second, i, chunk}, chunks),
                                         to_string({first, i, chunk}, chunks)));
      };
      before(OpKind::forward, b == 1 ? OpKind::backward : OpKind::backward_input);
      if (bi == 1) before(OpKind::backward_input, OpKind::backward_weight);
    }
}

// Rule 3. A message's sending and receiving ops have the same micro-batch and neighbouring stages.
void check_order(const Schedule& schedule, const Channel& channel, const Traffic& traffic,
                 std::vector<std::string>& problems) {
  const int step = channel.payload == Payload::activation ? 1 : -1;
  const bool chunks = schedule.v > 1;
  for (size_t i = 0; i < std::min(traffic.sent.size(), traffic.received.size()); ++i) {
    const Op &sent = traffic.sent[i], &received = traffic.received[i];
    if (sent.microbatch == received.microbatch &&
        schedule.stage_of(channel.from, sent.chunk) + step == schedule.stage_of(channel.to, received.chunk))
      continue;
    problems.push_back(fmt::format("{}: message {} comes from {}, but {} takes it", to_string(channel), i,
                                   to_string(sent, chunks), to_string(received, chunks)));
    return;  // all later messages are wrong too
  }
}

// The smallest depth >= `from` for which good(depth) holds. Deeper channels are never worse.
template <class Good>
int smallest_depth(int from, Good&& good) {
  int low = from, high = from;
  while (!good(high)) {
    low = high + 1;
    high *= 2;
  }
  while (low < high) {
    const int depth = (low + high) / 2;
    if (good(depth)) high = depth;
    else low = depth + 1;
  }
  return high;
}

}  // namespace

std::map<Channel, Traffic> traffic_of(const Schedule& schedule) {
  std::map<Channel, Traffic> traffic;
  for (int rank = 0; rank < schedule.p; ++rank)
    for (const Op& op : schedule.programs[size(rank)]) {
      if (const auto channel = schedule.receives(rank, op)) traffic[*channel].received.push_back(op);
      if (const auto channel = schedule.sends(rank, op)) traffic[*channel].sent.push_back(op);
    }
  return traffic;
}

std::vector<std::string> find_problems(const Schedule& schedule) {
  std::vector<std::string> problems = out_of_range(schedule);
  if (!problems.empty()) return problems;
  for (int rank = 0; rank < schedule.p; ++rank) check_program(schedule, rank, problems);
  for (const auto& [channel, traffic] : traffic_of(schedule)) check_order(schedule, channel, traffic, problems);
  for (const StuckRank& stuck : find_stuck_ranks(schedule, Costs{})) problems.push_back(to_string(schedule, stuck));
  return problems;
}

void check_schedule(const Schedule& schedule, std::string_view place) {
  const std::vector<std::string> problems = find_problems(schedule);
  if (problems.empty()) return;
  constexpr size_t most = 20;
  std::string text = fmt::format("{}the schedule '{}' cannot work:", place, schedule.kind);
  for (size_t i = 0; i < std::min(most, problems.size()); ++i) text += "\n  " + problems[i];
  if (problems.size() > most) text += fmt::format("\n  and {} more", problems.size() - most);
  throw ConfigError(text);
}

int safe_channel_depth(const Schedule& schedule) {
  if (traffic_of(schedule).empty()) return 0;
  return smallest_depth(1,
                        [&](int depth) { return find_stuck_ranks(schedule, Costs{.channel_depth = depth}).empty(); });
}

ChannelDepths channel_depths(const Schedule& schedule) {
  const int safe = safe_channel_depth(schedule);
  if (safe == 0) return {};
  const double best = bubble_of(simulate(schedule, Costs{})).makespan;
  const auto as_fast = [&](int depth) {
    return bubble_of(simulate(schedule, Costs{.channel_depth = depth})).makespan <= best;
  };
  return {safe, smallest_depth(safe, as_fast)};
}

bool gradients_in_order(const Schedule& schedule) {
  for (const Program& program : schedule.programs) {
    std::vector<int> next(size(schedule.v), 0);
    for (const Op& op : program)
      if (op.kind == OpKind::backward || op.kind == OpKind::backward_weight)
        if (op.microbatch != next[size(op.chunk)]++) return false;
  }
  return true;
}

}  // namespace trivet
