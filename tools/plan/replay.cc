#include "tools/plan/replay.h"

#include <fmt/format.h>
#include <utility>

#include "base/check.h"
#include "base/host.h"
#include "base/parallel_for.h"
#include "tools/plan/replay_state.h"

namespace trivet {
namespace {

Span span_of(const PlayedSpan& played, const Player& player, const TapeGroups& groups) {
  const Tape& tape = *player.tape;
  const TapeRecord& record = tape.records[played.record];
  Span span{.info = {.label = tape.labels[record.label]}, .start_ns = played.start_ns, .end_ns = played.end_ns};
  if (record.kind != TapeRecord::call) {
    const TapeWork& work = tape.works[record.what];
    span.info.name = work.name, span.info.category = work.category, span.info.cost = work.wire;
    return span;
  }
  const TapeCall& call = tape.calls[record.what];
  const TapeGroups::Group& group = groups[player.groups[static_cast<size_t>(call.group)]];
  span.info.name = call.name, span.info.category = group.category, span.info.bytes = call.bytes;
  span.info.ranks = static_cast<int>(group.world_ranks.size()), span.info.cost = call.sends ? WireCost{} : call.cost;
  // A wire start of 0 would mean "unknown".
  span.wire_start_ns = std::max<int64_t>(played.wire_start_ns, 1),
  span.wire_end_ns = std::max<int64_t>(played.end_ns, 1);
  return span;
}

}  // namespace

Replay::Replay(std::span<const Player> players, const TapeGroups& groups, const ReplayCosts& costs,
               const ReplayOptions& options)
    : groups_(groups),
      costs_(costs),
      options_(options),
      buffered_(costs.buffered_sends()),
      slowdown_(costs.slowdown()) {
  result_.step_ends.resize(players.size());
  cause_of_end_.resize(players.size(), kNone);
  phases_.resize(players.size());
  std::vector<const Tape*> tapes;
  for (const Player& player : players)
    if (walks_.try_emplace(player.tape).second) tapes.push_back(player.tape);
  parallel_for(tapes.size(), static_cast<size_t>(usable_cores()),
               [&](size_t i) { walks_.at(tapes[i]) = std::make_unique<Walk>(*tapes[i], costs); });
  for (const Player& player : players) {
    const std::unique_ptr<Walk>& walk = walks_.at(player.tape);
    const auto number = static_cast<uint32_t>(ranks_.size());
    ranks_.push_back({.walk = walk.get(), .player = &player, .first_stream = static_cast<uint32_t>(streams_.size())});
    streams_.resize(streams_.size() + walk->streams.size(), StreamState{number});
    if (options.spans) result_.spans.emplace_back(walk->streams.size());
  }
  add_channels(players);
}

Replayed Replay::play() {
  for (uint32_t stream = 0; stream < streams_.size(); ++stream) ready_.push_back(stream);
  while (true) {
    while (!ready_.empty()) {
      const uint32_t stream = ready_.back();
      ready_.pop_back();
      go_on(stream);
    }
    if (due_.empty()) break;
    const Due due = due_.top();
    due_.pop();
    now_ = due.time;
    end_due(due);
  }
  if (std::ranges::any_of(streams_, [](const StreamState& stream) { return stream.state != State::done; }))
    fail_stuck();
  if (options_.critical_path) trace_path();
  return std::move(result_);
}

// Handles the end of a call or of work, or the moment when the host has queued a stream's next record.
void Replay::end_due(const Due& due) {
  if (due.what & kCall) {
    const uint32_t call = due.what & ~kCall;
    if (due.version == calls_[call].activity.version) end_call(call);
    return;
  }
  StreamState& stream = streams_[due.what];
  if (due.version != stream.activity.version) return;
  ReplayRank& rank = ranks_[stream.rank];
  if (stream.state == State::working) {
    const uint32_t record = rank.walk->streams[local(due.what)].steps[stream.next].record;
    add_span(due.what, record, stream.came_ns, 0);
    stream.cause = add_cause(stream.rank, record, stream.came_ns, stream.cause);
    --rank.working;
    ++stream.next;
    stream.ahead = stream.activity.excess(now_);
    if (costs_.threads() > 0) set_cores(due.what, false);
  } else {
    stream.cause = add_cause(stream.rank, PathPart::kHost, rank.host_since, rank.host_cause);
    stream.ahead = 0;
  }
  make_ready(due.what);
}

// Runs a stream's records until one takes time or must wait.
void Replay::go_on(uint32_t number) {
  StreamState& stream = streams_[number];
  if (stream.state != State::ready) return;
  const ReplayRank& rank = ranks_[stream.rank];
  const Walk::Stream& walk = rank.walk->streams[local(number)];
  while (stream.next < walk.steps.size()) {
    if (stream.next >= walk.behind[rank.host_waits]) {
      stream.state = State::on_host;
      stream.ahead = 0;
      return;
    }
    if (const int64_t queued = walk.steps[stream.next].host_ns + rank.host_late; queued > now_)
      return set_due(stream.activity, number, queued);
    if (!take(number, walk.steps[stream.next])) return;
  }
  stream.state = State::done;
}

// Returns false if the stream is now waiting or working.
bool Replay::take(uint32_t number, const Walk::Step& step) {
  StreamState& stream = streams_[number];
  const bool is_phase = step.kind == TapeRecord::begin_phase || step.kind == TapeRecord::end_phase;
  if (step.kind != TapeRecord::work && !is_phase) stream.ahead = 0;
  switch (step.kind) {
    case TapeRecord::work: return begin_work(number);
    case TapeRecord::call: {
      stream.came_ns = now_;
      stream.state = State::in_call;
      const size_t count = step.with_next ? 2 : 1;
      stream.calls_left = static_cast<uint8_t>(count);
      for (const Walk::Step& call : std::span(&step, count)) arrive(number, call);
      return stream.state != State::in_call;  // if true, the calls have ended and `next` is past them
    }
    case TapeRecord::record: passed(number, stream.next++); return true;
    case TapeRecord::wait:
      if (wait_for_event(number, step)) return false;
      break;
    case TapeRecord::begin_phase:
    case TapeRecord::end_phase:
      if (options_.spans) trace_phase(number, step);
      break;
    case TapeRecord::mark:
      result_.step_ends[stream.rank].push_back(now_);
      if (options_.critical_path) cause_of_end_[stream.rank] = stream.cause;
      break;
    default: break;
  }
  ++stream.next;
  return true;
}

// Returns true if the work takes no time.
bool Replay::begin_work(uint32_t number) {
  StreamState& stream = streams_[number];
  ReplayRank& rank = ranks_[stream.rank];
  const Walk::Stream& walk = rank.walk->streams[local(number)];
  const Walk::Step& work = walk.steps[stream.next];
  stream.came_ns = now_;
  stream.activity.begin(rank.walk->work_ns[work.what], now_, stream.ahead);
  if (stream.activity.left <= 0) {
    add_span(number, work.record, now_, 0);
    stream.ahead = -stream.activity.left;
    ++stream.next;
    return true;
  }
  stream.activity.rate = static_cast<int32_t>(rank.compute_rate);
  stream.state = State::working;
  ++rank.working;
  if (costs_.threads() > 0) set_cores(number, true);
  set_due(stream.activity, number);
  return false;
}

// Returns true if the stream must wait for the event.
bool Replay::wait_for_event(uint32_t number, const Walk::Step& step) {
  StreamState& stream = streams_[number];
  StreamState& other = streams_[ranks_[stream.rank].first_stream + step.of];
  if (other.next > step.what) return false;
  stream.state = State::on_event;
  stream.event = step.what;
  other.waiters.push_back(number);
  return true;
}

// A stream has passed an event: releases the streams and the host that wait for the event.
void Replay::passed(uint32_t number, uint32_t event) {
  ReplayRank& rank = rank_of(number);
  std::erase_if(streams_[number].waiters, [&](uint32_t waiter) {
    if (streams_[waiter].event > event) return false;
    streams_[waiter].cause = streams_[number].cause;
    make_ready(waiter);
    return true;
  });
  const std::vector<Walk::HostWait>& waits = rank.walk->host_waits;
  const uint32_t before = rank.host_waits;
  while (rank.host_waits < waits.size()) {
    const Walk::HostWait& wait = waits[rank.host_waits];
    if (streams_[rank.first_stream + wait.stream].next <= wait.step) break;
    if (now_ - wait.host_ns > rank.host_late) {
      rank.host_late = now_ - wait.host_ns;
      rank.host_since = now_, rank.host_cause = streams_[number].cause;
    }
    ++rank.host_waits;
  }
  if (rank.host_waits == before) return;
  for (uint32_t s = 0; s < rank.walk->streams.size(); ++s)
    if (streams_[rank.first_stream + s].state == State::on_host) {
      streams_[rank.first_stream + s].cause = streams_[number].cause;
      make_ready(rank.first_stream + s);
    }
}

void Replay::trace_phase(uint32_t number, const Walk::Step& step) {
  std::vector<Phase>& phases = phases_[streams_[number].rank];
  if (step.kind == TapeRecord::begin_phase) return phases.push_back({number, step.record, now_});
  const auto begun = std::ranges::find(phases.rbegin(), phases.rend(), number, &Phase::stream);
  add_span(number, begun->record, begun->start_ns, 0);
  phases.erase(std::next(begun).base());
}

void Replay::add_span(uint32_t stream, uint32_t record, int64_t start_ns, int64_t wire_start_ns) {
  const uint32_t rank = streams_[stream].rank;
  if (options_.spans && result_.step_ends[rank].size() >= static_cast<size_t>(options_.first_step))
    result_.spans[rank][local(stream)].push_back({record, start_ns, now_, wire_start_ns});
}

// Stores an activity that has just ended as a cause; only if the critical path is requested, and for the last step.
uint32_t Replay::add_cause(uint32_t rank, uint32_t record, int64_t start_ns, uint32_t before) {
  if (!options_.critical_path || static_cast<int>(result_.step_ends[rank].size()) + 1 < ranks_[rank].walk->tape.steps)
    return kNone;
  causes_.push_back({{static_cast<int>(rank), record, start_ns, now_}, before});
  return static_cast<uint32_t>(causes_.size()) - 1;
}

// Follows the causes back from the end of the last step.
void Replay::trace_path() {
  const auto end_of = [&](const std::vector<int64_t>& ends) { return ends.back(); };
  const auto last = std::ranges::max_element(result_.step_ends, {}, end_of);
  int64_t begin = 0;
  for (const std::vector<int64_t>& ends : result_.step_ends)
    if (ends.size() > 1) begin = std::max(begin, *(ends.end() - 2));
  std::vector<PathPart>& path = result_.critical_path;
  for (uint32_t at = cause_of_end_[static_cast<size_t>(last - result_.step_ends.begin())]; at != kNone;
       at = causes_[at].before) {
    PathPart part = causes_[at].part;
    if (part.end_ns <= begin) break;
    part.start_ns = std::max(part.start_ns, begin);
    if (part.end_ns > part.start_ns) path.push_back(part);
  }
  std::ranges::reverse(path);
}

void Replay::fail_stuck() const {
  std::string text = "the ranks wait for each other forever:";
  for (uint32_t number = 0; number < streams_.size(); ++number) {
    const StreamState& stream = streams_[number];
    const ReplayRank& rank = ranks_[stream.rank];
    const std::vector<Walk::Step>& steps = rank.walk->streams[local(number)].steps;
    if (stream.state != State::done)
      text += fmt::format("\n  rank {}, stream {}, at record {} of its tape", rank.player->rank, local(number),
                          steps[stream.next].record);
  }
  fail(text);
}

std::vector<std::vector<Span>> rows_of(const std::vector<std::vector<PlayedSpan>>& spans, const Player& player,
                                       const TapeGroups& groups) {
  std::vector<std::vector<Span>> rows(spans.size());
  for (size_t s = 0; s < rows.size(); ++s) {
    rows[s].reserve(spans[s].size());
    for (const PlayedSpan& span : spans[s]) rows[s].push_back(span_of(span, player, groups));
  }
  return rows;
}

Replayed replay(std::span<const Player> players, const TapeGroups& groups, const ReplayCosts& costs,
                const ReplayOptions& options) {
  return Replay(players, groups, costs, options).play();
}

}  // namespace trivet
