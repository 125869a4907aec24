// Calls: which ranks take part, when calls start and end, and how they share ports. Also how ranks share cores.
#include <tuple>
#include <utility>

#include "tools/plan/replay_state.h"

namespace trivet {

void Replay::add_channels(std::span<const Player> players) {
  std::map<std::tuple<int, int, int>, uint32_t> numbers;  // by group; for transfers, also by source and destination
  for (size_t i = 0; i < players.size(); ++i) {
    const Player& player = players[i];
    ReplayRank& rank = ranks_[i];
    rank.first_channel = static_cast<uint32_t>(channel_of_lane_.size());
    rank.first_cost = static_cast<uint32_t>(call_costs_.size());
    call_costs_.resize(call_costs_.size() + player.tape->calls.size(), {.ns = -1});
    for (const Walk::Lane& lane : rank.walk->lanes) {
      const auto local = static_cast<size_t>(lane.group);
      const TapeGroups::Group& group = groups_[player.groups[local]];
      const auto size = static_cast<int>(group.world_ranks.size());
      std::tuple<int, int, int> key{player.groups[local], -1, -1};
      if (lane.transfers) {
        const int self = player.places[local], peer = (self + lane.ahead) % size;
        key = {player.groups[local], lane.sends ? self : peer, lane.sends ? peer : self};
      }
      const auto [at, is_new] = numbers.try_emplace(key, static_cast<uint32_t>(channels_.size()));
      const int expected = lane.transfers ? 2 : group.arrivals > 0 ? group.arrivals : size;
      if (is_new) channels_.push_back({.expected = static_cast<uint32_t>(expected)});
      channel_of_lane_.push_back(at->second);
    }
  }
}

void Replay::arrive(uint32_t number, const Walk::Step& step) {
  StreamState& stream = streams_[number];
  ReplayRank& rank = ranks_[stream.rank];
  const Walk::Lane& lane = rank.walk->lanes[step.of];
  const uint32_t call_number = open_call(rank, step);
  OpenCall& call = calls_[call_number];
  const bool goes_on = buffered_ && lane.transfers && lane.sends;
  call.members.push_back({number, goes_on, !lane.transfers || lane.sends, !lane.transfers || !lane.sends});
  if (goes_on) {
    if (call.cost.queue >= 0) call.arrival_ns = send(rank, call.cost);
    add_span(number, step.record, stream.came_ns, now_);
    ++stream.next;
    if (--stream.calls_left == 0) stream.state = State::ready;
  }
  if (call.members.size() == channels_[call.channel].expected) start_call(call_number);
}

// Returns the call that the rank has reached, opening it if the rank is the first to arrive.
uint32_t Replay::open_call(const ReplayRank& rank, const Walk::Step& step) {
  const uint32_t number = channel_of_lane_[rank.first_channel + step.of];
  Channel& channel = channels_[number];
  if (step.sequence >= channel.calls.size()) channel.calls.resize(step.sequence + 1, kNone);
  uint32_t& opened = channel.calls[step.sequence];
  if (opened != kNone) return opened;
  CallCost& cost = call_costs_[rank.first_cost + step.what];
  if (cost.ns < 0) {
    const TapeCall& call = rank.walk->tape.calls[step.what];
    cost = costs_.call_cost(call, groups_[rank.player->groups[static_cast<size_t>(call.group)]]);
  }
  opened = static_cast<uint32_t>(calls_.size());
  calls_.push_back({.activity = {}, .cost = cost, .members = {}, .channel = number});
  return opened;
}

// Counts a call that joins (by = 1) or leaves (by = -1) a rank's port.
void Replay::count(ReplayRank& rank, Port port, const Member& member, int by) {
  auto& on_port = rank.on_port[static_cast<size_t>(port)];
  if (member.sends) on_port[kSends] += by;
  if (member.receives) on_port[kReceives] += by;
}

void Replay::start_call(uint32_t number) {
  OpenCall& call = calls_[number];
  call.start_ns = now_;
  call.cause = streams_[call.members.back().stream].cause;  // the call waited for its last member
  int64_t ns = call.cost.ns;
  if (call.cost.queue >= 0) {
    if (call.arrival_ns == 0)  // a collective
      for (const Member& member : call.members)
        call.arrival_ns = std::max(call.arrival_ns, send(rank_of(member.stream), call.cost));
    ns = std::max<int64_t>(0, call.arrival_ns - now_);
  }
  call.activity.begin(ns, now_);
  if (call.activity.left == 0) return end_call(number);
  call.active = true;
  if (call.cost.port != Port::none) {
    for (const Member& member : call.members) {
      ReplayRank& rank = rank_of(member.stream);
      rank.calls.push_back(number);
      count(rank, call.cost.port, member, 1);
      set_wire(rank);
    }
    set_call_rate(number);
    share_ports(number);
  }
  set_due(call.activity, number | kCall);
}

// The cause that a call's successors store: the call itself or, if it took no time, what the call waited for.
uint32_t Replay::cause_of(const OpenCall& call) {
  if (!call.active) return call.cause;
  const auto stays = std::ranges::find(call.members, false, &Member::goes_on);
  const StreamState& stream = streams_[stays->stream];
  const Walk& walk = *ranks_[stream.rank].walk;
  return add_cause(stream.rank, walk.streams[local(stays->stream)].steps[stream.next].record, call.start_ns,
                   call.cause);
}

void Replay::end_call(uint32_t number) {
  OpenCall& call = calls_[number];
  ++call.activity.version;
  if (call.active && call.cost.port != Port::none) {
    for (const Member& member : call.members) {
      ReplayRank& rank = rank_of(member.stream);
      std::erase(rank.calls, number);
      count(rank, call.cost.port, member, -1);
      set_wire(rank);
    }
    share_ports(number);
  }
  const uint32_t cause = cause_of(call);
  for (const Member& member : call.members) {
    if (member.goes_on) continue;
    StreamState& stream = streams_[member.stream];
    stream.cause = cause;
    const Walk& walk = *ranks_[stream.rank].walk;
    add_span(member.stream, walk.streams[local(member.stream)].steps[stream.next].record, stream.came_ns,
             call.start_ns);
    ++stream.next;
    if (--stream.calls_left == 0) make_ready(member.stream);
  }
}

// Occupies the rank's port for a call. Returns the arrival time of its last byte (LinkPort, parallel/comm/link.h).
int64_t Replay::send(ReplayRank& rank, const CallCost& cost) {
  if (cost.ns == 0) return now_ + cost.latency_ns;
  int64_t& free = rank.queues.at(static_cast<size_t>(cost.queue));
  free = std::max(free, now_) + cost.ns;
  return free + cost.latency_ns;
}

// Called when a stream begins or ends work: all busy streams of the node continue at their new share of the cores.
void Replay::set_cores(uint32_t changed, bool works) {
  if (works) on_cores_.push_back(changed);
  else std::erase(on_cores_, changed);
  const int threads = local(changed) == 0 ? costs_.threads() : 1;
  busy_threads_ += works ? threads : -threads;
  if (busy_threads_ == 0) return;
  const auto rate = static_cast<int64_t>(static_cast<double>(kFullRate) * costs_.core_rate(busy_threads_));
  for (const uint32_t number : on_cores_) {
    Activity& activity = streams_[number].activity;
    if (activity.rate == rate) continue;
    activity.set_rate(rate, now_);
    set_due(activity, number);
  }
}

// Sets the rank's compute rate from the load of the calls on its wire.
void Replay::set_wire(ReplayRank& rank) {
  double load = 0;
  for (const uint32_t number : rank.calls) load = std::max(load, calls_[number].cost.load);
  const auto rate = static_cast<int64_t>(static_cast<double>(kFullRate) / (1 + (slowdown_ - 1) * load));
  if (rate == rank.compute_rate) return;
  rank.compute_rate = rate;
  uint32_t working = rank.working;
  for (uint32_t number = rank.first_stream; working > 0; ++number) {
    StreamState& stream = streams_[number];
    if (stream.state != State::working) continue;
    --working;
    if (stream.activity.rate == rate) continue;
    stream.activity.set_rate(rate, now_);
    set_due(stream.activity, number);
  }
}

// Called when a call has joined or left its ports: updates the rates of the calls that share them.
void Replay::share_ports(uint32_t changed) {
  for (const Member& member : calls_[changed].members)
    for (const uint32_t number : rank_of(member.stream).calls) {
      OpenCall& call = calls_[number];
      if (number == changed || call.cost.port != calls_[changed].cost.port) continue;
      const int32_t before = call.activity.rate;
      set_call_rate(number);
      if (call.activity.rate != before) set_due(call.activity, number | kCall);
    }
}

// The busiest port determines the rate. Links are full duplex: sends do not slow down receives.
void Replay::set_call_rate(uint32_t number) {
  OpenCall& call = calls_[number];
  int64_t most = 1;
  for (const Member& member : call.members) {
    const auto& on_port = rank_of(member.stream).on_port[static_cast<size_t>(call.cost.port)];
    if (member.sends) most = std::max<int64_t>(most, on_port[kSends]);
    if (member.receives) most = std::max<int64_t>(most, on_port[kReceives]);
  }
  if (const int64_t rate = kFullRate / most; rate != call.activity.rate) call.activity.set_rate(rate, now_);
}

}  // namespace trivet
