#include "engine/plan/replay.h"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "engine/plan/walk.h"
#include "kernels/base/check.h"

namespace trivet {
namespace {

class Replay {
 public:
  Replay(std::span<const Player> players, const TapeGroups& groups, const ReplayCosts& costs,
         const ReplayOptions& options);
  Replayed play();

 private:
  enum class State : uint8_t { ready, working, in_call, on_event, on_host, done };
  struct StreamState {
    uint32_t next = 0;
    State state = State::ready;
    uint8_t calls_left = 0;  // in_call
    Walk::Place event;       // on_event
    int64_t came_ns = 0;     // working, in_call
    Activity activity;
    std::vector<std::pair<uint32_t, int64_t>> phases;  // begun: index of the record, time
    std::vector<Span> spans;
  };
  struct RankState {
    const Walk* walk;
    const Player* player;
    std::vector<StreamState> streams = {};
    uint32_t host_waits = 0;                             // that are over
    int64_t host_late = 0;                               // ns that they took
    std::vector<uint32_t> calls = {};                    // active on its ports
    std::array<int64_t, CallCost::kQueues> queues = {};  // when they are free, ns
    bool traced = false;
  };
  // A stream, or where stream is kCall the open call of number `rank`.
  struct Due {
    int64_t time;
    int rank;
    uint16_t stream;
    uint32_t version;
    bool operator>(const Due& o) const {
      return std::tie(time, rank, stream, version) > std::tie(o.time, o.rank, o.stream, o.version);
    }
  };
  static constexpr uint16_t kCall = UINT16_MAX;

  RankState& rank_of(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  void go_on(int rank, uint8_t stream);
  bool take(int rank, uint8_t stream, const Walk::Step& step);
  void arrive(int rank, uint8_t stream, const Walk::Step& step);
  void start_call(uint32_t number);
  void end_call(uint32_t number);
  void passed(int rank, uint8_t stream);
  void add_span(RankState& rank, StreamState& stream, const Walk::Step& step, int64_t wire_start);
  void set_wire(int rank);
  void set_cores(int rank, uint8_t stream, bool works);
  int64_t send(int rank, const CallCost& cost);
  void share_ports(const OpenCall& changed);
  int64_t rate_of(const OpenCall& call) const;
  [[noreturn]] void fail_stuck() const;

  const TapeGroups& groups_;
  const ReplayCosts& costs_;
  const ReplayOptions& options_;
  const bool buffered_;
  const int64_t slow_rate_;
  std::vector<std::pair<int, uint8_t>> on_cores_;  // streams that work, where ranks share cores
  int64_t busy_threads_ = 0;                       // theirs
  std::map<const Tape*, std::unique_ptr<Walk>> walks_;
  std::vector<RankState> ranks_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::vector<std::pair<int, uint8_t>> ready_;  // streams that may go on now
  std::vector<OpenCall> calls_;
  std::vector<uint32_t> free_calls_;
  std::unordered_map<CallKey, uint32_t, HashOfCall> open_;
  std::vector<CallKey> keys_;  // [call]
  int64_t now_ = 0;
  Replayed result_;
};

Replay::Replay(std::span<const Player> players, const TapeGroups& groups, const ReplayCosts& costs,
               const ReplayOptions& options)
    : groups_(groups),
      costs_(costs),
      options_(options),
      buffered_(costs.buffered_sends()),
      slow_rate_(static_cast<int64_t>(static_cast<double>(kFullRate) / costs.slowdown())) {
  result_.step_ends.resize(players.size());
  for (const Player& player : players) {
    const int number = static_cast<int>(ranks_.size());
    std::unique_ptr<Walk>& walk = walks_[player.tape];
    if (!walk) walk = std::make_unique<Walk>(*player.tape, costs);
    RankState& rank = ranks_.emplace_back(RankState{.walk = walk.get(), .player = &player});
    rank.streams.resize(player.tape->streams.size());
    rank.traced = std::ranges::count(options.traced, number) > 0;
    result_.records += static_cast<int64_t>(player.tape->records.size());
  }
}

Replayed Replay::play() {
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank)
    for (size_t stream = 0; stream < rank_of(rank).streams.size(); ++stream)
      ready_.emplace_back(rank, static_cast<uint8_t>(stream));
  while (true) {
    while (!ready_.empty()) {
      const auto [rank, stream] = ready_.back();
      ready_.pop_back();
      go_on(rank, stream);
    }
    if (due_.empty()) break;
    const Due due = due_.top();
    due_.pop();
    const bool is_call = due.stream == kCall;
    StreamState* const stream = is_call ? nullptr : &rank_of(due.rank).streams[due.stream];
    OpenCall* const call = is_call ? &calls_[static_cast<size_t>(due.rank)] : nullptr;
    if (due.version != (is_call ? call->activity : stream->activity).version) continue;
    now_ = due.time;
    if (is_call) {
      end_call(static_cast<uint32_t>(due.rank));
    } else {
      if (stream->state == State::working) {
        RankState& rank = rank_of(due.rank);
        add_span(rank, *stream, rank.walk->streams[due.stream][stream->next], 0);
        ++stream->next;
        if (costs_.threads() > 0) set_cores(due.rank, static_cast<uint8_t>(due.stream), false);
      }
      stream->state = State::ready;
      ready_.emplace_back(due.rank, static_cast<uint8_t>(due.stream));
    }
  }
  for (RankState& rank : ranks_) {
    for (const StreamState& stream : rank.streams)
      if (stream.state != State::done) fail_stuck();
    if (!rank.traced) continue;
    Replayed::Traced& traced =
        result_.traced.emplace_back(Replayed::Traced{.player = static_cast<int>(&rank - ranks_.data()), .rows = {}});
    for (StreamState& stream : rank.streams) traced.rows.push_back(std::move(stream.spans));
  }
  return std::move(result_);
}

// Takes records of a stream until one takes time or has to wait.
void Replay::go_on(int number, uint8_t stream_number) {
  RankState& rank = rank_of(number);
  StreamState& stream = rank.streams[stream_number];
  if (stream.state == State::working || stream.state == State::in_call || stream.state == State::done) return;
  const std::vector<Walk::Step>& steps = rank.walk->streams[stream_number];
  while (stream.next < steps.size()) {
    const Walk::Step& step = steps[stream.next];
    if (step.host_waits > rank.host_waits) {
      stream.state = State::on_host;
      return;
    }
    if (const int64_t queued = step.host_ns + rank.host_late; queued > now_) {
      stream.state = State::ready;
      due_.push({queued, number, stream_number, ++stream.activity.version});
      return;
    }
    if (!take(number, stream_number, step)) return;
  }
  stream.state = State::done;
}

// False: the stream waits, or works.
bool Replay::take(int number, uint8_t stream_number, const Walk::Step& step) {
  RankState& rank = rank_of(number);
  StreamState& stream = rank.streams[stream_number];
  switch (step.record.kind) {
    case TapeRecord::work: {
      stream.came_ns = now_;
      stream.activity.begin(rank.walk->work_ns[step.record.what][step.record.in_graph ? 1 : 0], now_);
      if (stream.activity.left == 0) {
        add_span(rank, stream, step, 0);
        break;
      }
      if (!rank.calls.empty()) stream.activity.rate = slow_rate_;
      stream.state = State::working;
      if (costs_.threads() > 0) set_cores(number, stream_number, true);
      due_.push({stream.activity.end(), number, stream_number, ++stream.activity.version});
      return false;
    }
    case TapeRecord::call: {
      stream.came_ns = now_;
      const size_t count = step.record.with_next ? 2 : 1;
      stream.state = State::in_call;
      stream.calls_left = static_cast<uint8_t>(count);
      for (const Walk::Step& call : std::span(&step, count)) arrive(number, stream_number, call);
      if (stream.state == State::in_call) return false;
      return true;  // they are over, and so is `next`
    }
    case TapeRecord::record:
      ++stream.next;
      passed(number, stream_number);
      return true;
    case TapeRecord::wait: {
      const Walk::Place event = rank.walk->events[step.record.what];
      if (rank.streams[event.stream].next <= event.index) {
        stream.state = State::on_event;
        stream.event = event;
        return false;
      }
      break;
    }
    case TapeRecord::begin_phase: stream.phases.emplace_back(stream.next, now_); break;
    case TapeRecord::end_phase: {
      const auto [index, since] = stream.phases.back();
      stream.phases.pop_back();
      stream.came_ns = since;
      add_span(rank, stream, rank.walk->streams[stream_number][index], 0);
      break;
    }
    case TapeRecord::mark: result_.step_ends[static_cast<size_t>(number)].push_back(now_); break;
    default: break;
  }
  ++stream.next;
  return true;
}

// A stream has gone past an event.
void Replay::passed(int number, uint8_t stream_number) {
  RankState& rank = rank_of(number);
  const uint32_t next = rank.streams[stream_number].next;
  for (size_t s = 0; s < rank.streams.size(); ++s) {
    StreamState& other = rank.streams[s];
    if (other.state != State::on_event || other.event.stream != stream_number || other.event.index >= next) continue;
    other.state = State::ready;
    ready_.emplace_back(number, static_cast<uint8_t>(s));
  }
  const std::vector<Walk::HostWait>& waits = rank.walk->host_waits;
  const uint32_t before = rank.host_waits;
  while (rank.host_waits < waits.size()) {
    const Walk::HostWait& wait = waits[rank.host_waits];
    if (rank.streams[wait.event.stream].next <= wait.event.index) break;
    rank.host_late = std::max(rank.host_late, now_ - wait.host_ns);
    ++rank.host_waits;
  }
  if (rank.host_waits == before) return;
  for (size_t s = 0; s < rank.streams.size(); ++s)
    if (rank.streams[s].state == State::on_host) {
      rank.streams[s].state = State::ready;
      ready_.emplace_back(number, static_cast<uint8_t>(s));
    }
}

void Replay::arrive(int number, uint8_t stream_number, const Walk::Step& step) {
  RankState& rank = rank_of(number);
  const TapeCall& call = rank.walk->tape.calls[step.record.what];
  const bool transfer = call.kind == CommCall::transfer;
  const int group_number = rank.player->groups[static_cast<size_t>(call.group)];
  const TapeGroups::Group& group = groups_[group_number];
  const auto size = static_cast<int>(group.world_ranks.size());
  CallKey key{group_number, -1, -1, step.sequence};
  if (transfer) {
    const int self = rank.player->places[static_cast<size_t>(call.group)], peer = (self + call.ahead) % size;
    key.from = call.sends ? self : peer, key.to = call.sends ? peer : self;
  }
  const auto [at, is_new] = open_.try_emplace(key, 0);
  if (is_new) {
    if (free_calls_.empty())
      free_calls_.push_back(static_cast<uint32_t>(calls_.size())), calls_.emplace_back(), keys_.emplace_back();
    at->second = free_calls_.back();
    free_calls_.pop_back();
    OpenCall& opened = calls_[at->second];
    opened.members.clear();
    opened.expected = static_cast<size_t>(transfer ? 2 : group.arrivals > 0 ? group.arrivals : size);
    opened.cost = costs_.call_cost(call, group);
    opened.active = false;
    opened.arrival_ns = 0;
    keys_[at->second] = key;
  }
  OpenCall& open = calls_[at->second];
  const bool goes_on = buffered_ && transfer && call.sends;
  open.members.push_back({number, stream_number, goes_on});
  const uint32_t call_number = at->second;
  if (goes_on) {
    if (open.cost.queue >= 0) open.arrival_ns = send(number, open.cost);
    StreamState& stream = rank.streams[stream_number];
    add_span(rank, stream, step, now_);
    ++stream.next;
    if (--stream.calls_left == 0) stream.state = State::ready;
  }
  if (open.members.size() == open.expected) start_call(call_number);
}

void Replay::start_call(uint32_t number) {
  OpenCall& call = calls_[number];
  call.start_ns = now_;
  int64_t ns = call.cost.ns;
  if (call.cost.queue >= 0) {
    if (call.arrival_ns == 0)
      for (const Member& member : call.members)
        call.arrival_ns = std::max(call.arrival_ns, send(member.rank, call.cost));
    ns = std::max<int64_t>(0, call.arrival_ns - now_);
  }
  call.activity.begin(ns, now_);
  if (call.activity.left == 0) return end_call(number);
  call.active = true;
  if (call.cost.port != Port::none) {
    for (const Member& member : call.members) {
      rank_of(member.rank).calls.push_back(number);
      set_wire(member.rank);
    }
    share_ports(call);
  }
  due_.push({call.activity.end(), static_cast<int>(number), kCall, ++call.activity.version});
}

void Replay::end_call(uint32_t number) {
  OpenCall& call = calls_[number];
  ++call.activity.version;
  open_.erase(keys_[number]);
  if (call.active && call.cost.port != Port::none) {
    for (const Member& member : call.members) {
      std::erase(rank_of(member.rank).calls, number);
      set_wire(member.rank);
    }
    share_ports(call);
  }
  for (const Member& member : call.members) {
    if (member.goes_on) continue;
    RankState& rank = rank_of(member.rank);
    StreamState& stream = rank.streams[member.stream];
    add_span(rank, stream, rank.walk->streams[member.stream][stream.next], call.start_ns);
    ++stream.next;
    if (--stream.calls_left > 0) continue;
    stream.state = State::ready;
    ready_.emplace_back(member.rank, member.stream);
  }
  free_calls_.push_back(number);
}

// Compute on the rank runs at the rate that its wire leaves it.
void Replay::set_wire(int number) {
  RankState& rank = rank_of(number);
  const int64_t rate = rank.calls.empty() ? kFullRate : slow_rate_;
  for (size_t s = 0; s < rank.streams.size(); ++s) {
    StreamState& stream = rank.streams[s];
    if (stream.state != State::working || stream.activity.rate == rate) continue;
    stream.activity.set_rate(rate, now_);
    due_.push({stream.activity.end(), number, static_cast<uint16_t>(s), ++stream.activity.version});
  }
}

// A stream begins or ends to work: all that work on the node go on at the rate that is left to each.
void Replay::set_cores(int number, uint8_t stream_number, bool works) {
  const std::pair<int, uint8_t> changed{number, stream_number};
  if (works) on_cores_.push_back(changed);
  else std::erase(on_cores_, changed);
  const int threads = stream_number == 0 ? costs_.threads() : 1;
  busy_threads_ += works ? threads : -threads;
  if (busy_threads_ == 0) return;
  const auto rate = static_cast<int64_t>(static_cast<double>(kFullRate) * costs_.core_rate(busy_threads_));
  for (const auto& [rank, stream] : on_cores_) {
    Activity& activity = rank_of(rank).streams[stream].activity;
    if (activity.rate == rate) continue;
    activity.set_rate(rate, now_);
    due_.push({activity.end(), rank, stream, ++activity.version});
  }
}

// Takes the rank's port for a call; returns when its last byte is there (LinkPort, parallel/comm/link.h).
int64_t Replay::send(int number, const CallCost& cost) {
  if (cost.ns == 0) return now_ + cost.latency_ns;
  int64_t& free = rank_of(number).queues.at(static_cast<size_t>(cost.queue));
  free = std::max(free, now_) + cost.ns;
  return free + cost.latency_ns;
}

// Calls that share a port with this one get their part of its rate: of the port that most share.
void Replay::share_ports(const OpenCall& changed) {
  for (const Member& member : changed.members)
    for (const uint32_t number : rank_of(member.rank).calls) {
      OpenCall& call = calls_[number];
      if (call.cost.port != changed.cost.port) continue;
      const int64_t rate = rate_of(call);
      if (rate == call.activity.rate) continue;
      call.activity.set_rate(rate, now_);
      due_.push({call.activity.end(), static_cast<int>(number), kCall, ++call.activity.version});
    }
}

int64_t Replay::rate_of(const OpenCall& call) const {
  int64_t most = 1;
  for (const Member& member : call.members) {
    const std::vector<uint32_t>& there = ranks_[static_cast<size_t>(member.rank)].calls;
    most = std::max(most, static_cast<int64_t>(std::ranges::count_if(
                              there, [&](uint32_t other) { return calls_[other].cost.port == call.cost.port; })));
  }
  return kFullRate / most;
}

void Replay::add_span(RankState& rank, StreamState& stream, const Walk::Step& step, int64_t wire_start) {
  if (!rank.traced) return;
  const auto steps_done = result_.step_ends[static_cast<size_t>(&rank - ranks_.data())].size();
  if (steps_done < static_cast<size_t>(options_.first_step)) return;
  const Tape& tape = rank.walk->tape;
  Span span{.info = {.label = tape.labels[step.record.label]}, .start_ns = stream.came_ns, .end_ns = now_};
  if (step.record.kind == TapeRecord::call) {
    const TapeCall& call = tape.calls[step.record.what];
    const TapeGroups::Group& group = groups_[rank.player->groups[static_cast<size_t>(call.group)]];
    span.info.name = call.name, span.info.category = group.category, span.info.bytes = call.bytes;
    span.info.ranks = static_cast<int>(group.world_ranks.size()), span.info.cost = call.cost;
    span.wire_start_ns = std::max<int64_t>(wire_start, 1), span.wire_end_ns = std::max<int64_t>(now_, 1);
  } else {
    const TapeWork& work = tape.works[step.record.what];
    span.info.name = work.name, span.info.category = work.category;
  }
  stream.spans.push_back(span);
}

void Replay::fail_stuck() const {
  std::string text = "the ranks wait for each other for ever:";
  for (const RankState& rank : ranks_)
    for (size_t s = 0; s < rank.streams.size(); ++s)
      if (const StreamState& stream = rank.streams[s]; stream.state != State::done)
        text += fmt::format("\n  rank {}, stream {}, at record {} of {}", rank.player->rank, s, stream.next,
                            rank.walk->streams[s].size());
  fail(text);
}

}  // namespace

Replayed replay(std::span<const Player> players, const TapeGroups& groups, const ReplayCosts& costs,
                const ReplayOptions& options) {
  return Replay(players, groups, costs, options).play();
}

}  // namespace trivet
