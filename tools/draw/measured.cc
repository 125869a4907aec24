#include "tools/draw/measured.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <optional>

#include "base/check.h"
#include "base/statistics.h"
#include "engine/metrics/trace_file.h"

namespace trivet {
namespace {

std::optional<OpKind> kind_of(const std::string& name) {
  for (const OpKind kind : {OpKind::forward, OpKind::backward, OpKind::backward_input, OpKind::backward_weight})
    if (name == letter_of(kind)) return kind;
  return std::nullopt;
}

struct Milliseconds {
  double start, end;
};

// One pipeline rank in one step, as traced.
struct RankStep {
  std::vector<OpSpan> ops;         // from phase spans, which include the wait for the op's input
  std::vector<Milliseconds> work;  // on the compute stream
  std::map<Channel, std::vector<Milliseconds>> messages;
};

struct Reader {
  const Schedule& schedule;
  std::map<std::string, Channel> channels{};           // by row name
  std::map<int64_t, std::map<int, RankStep>> steps{};  // by step and pipeline rank

  explicit Reader(const Schedule& s) : schedule(s) {
    for (int rank = 0; rank < s.p; ++rank)
      for (const Op& op : s.programs[static_cast<size_t>(rank)])
        if (const auto channel = s.sends(rank, op)) channels[to_string(*channel)] = *channel;
  }

  void add(const TraceSpan& span) {
    if (!span.first_of_stage) return;  // belongs to another replica
    const Milliseconds time{static_cast<double>(span.time.begin) / 1e6, static_cast<double>(span.time.end) / 1e6};
    RankStep& step = steps[span.step][span.stage];
    if (const auto channel = channels.find(span.row); channel != channels.end()) {
      step.messages[channel->second].push_back(time);
    } else if (span.row == "compute" && span.category == "phase") {
      const auto kind = kind_of(span.name);
      if (!kind || span.microbatch < 0) return;
      const Op op{.kind = *kind, .microbatch = span.microbatch, .chunk = std::max(span.chunk, 0)};
      step.ops.push_back({span.stage, op, time.start, time.end});
    } else if (span.row == "compute") {
      step.work.push_back(time);
    }
  }
};

// Trims the op to the work inside it. `work` is sorted by start.
void tighten(OpSpan& op, const std::vector<Milliseconds>& work) {
  const auto first = std::lower_bound(work.begin(), work.end(), op.start,
                                      [](const Milliseconds& x, double time) { return x.start < time; });
  if (first == work.end() || first->start >= op.end) return;  // an op without work
  const double end = op.end;
  op.start = first->start;
  op.end = first->end;
  for (auto x = first; x != work.end() && x->start < end; ++x) op.end = std::max(op.end, x->end);
}

// Adds a channel's messages by pairing the sends at one end with the receives at the other, in order.
void add_transfers(Timeline& timeline, const Schedule& schedule, const Channel& channel,
                   const std::vector<Milliseconds>& sends, const std::vector<Milliseconds>& receives) {
  std::vector<Op> ops;
  for (const Op& op : schedule.programs[static_cast<size_t>(channel.from)])
    if (schedule.sends(channel.from, op) == channel) ops.push_back(op);
  // A send still in flight when its rank's step ends is traced with the next step; then the counts do not match.
  if (sends.size() != ops.size() || receives.size() != ops.size()) return;
  for (size_t i = 0; i < ops.size(); ++i)
    timeline.transfers.push_back({channel, ops[i], sends[i].start, receives[i].end, 0});
}

std::optional<Timeline> timeline_of(const Schedule& schedule, std::map<int, RankStep>& ranks) {
  Timeline timeline;
  timeline.unit = "ms";
  timeline.p = schedule.p;
  timeline.v = schedule.v;
  timeline.map = schedule.map;
  for (int rank = 0; rank < schedule.p; ++rank) {
    RankStep& step = ranks[rank];
    const auto by_start = [](const auto& a, const auto& b) { return a.start < b.start; };
    std::sort(step.work.begin(), step.work.end(), by_start);
    std::sort(step.ops.begin(), step.ops.end(), by_start);
    if (step.ops.size() != schedule.programs[static_cast<size_t>(rank)].size()) return std::nullopt;
    for (OpSpan& op : step.ops) {
      tighten(op, step.work);
      timeline.ops.push_back(op);
    }
    for (auto& [channel, messages] : step.messages) {
      std::sort(messages.begin(), messages.end(), by_start);
      if (channel.from == rank)
        add_transfers(timeline, schedule, channel, messages, ranks[channel.to].messages[channel]);
    }
  }
  double origin = timeline.ops.empty() ? 0 : timeline.ops.front().start;
  for (const OpSpan& op : timeline.ops) origin = std::min(origin, op.start);
  for (OpSpan& op : timeline.ops) op.start -= origin, op.end -= origin;
  for (TransferSpan& transfer : timeline.transfers) transfer.start -= origin, transfer.end -= origin;
  return timeline;
}

double median_or_zero(const std::vector<double>& values) { return values.empty() ? 0 : upper_median(values); }

}  // namespace

std::vector<MeasuredStep> read_measured_steps(const std::string& trace_path, const Schedule& schedule) {
  Reader reader(schedule);
  for_each_span(trace_path, [&](const TraceSpan& span) { reader.add(span); });
  std::vector<MeasuredStep> measured;
  for (auto& [step, ranks] : reader.steps)
    if (auto timeline = timeline_of(schedule, ranks)) measured.push_back({step, std::move(*timeline)});
  if (measured.empty())
    throw DataError(fmt::format("{}: holds no whole step of {} pipeline ranks with the schedule {}", trace_path,
                                schedule.p, schedule.kind));
  return measured;
}

Costs measured_costs(const Schedule& schedule, std::span<const MeasuredStep> steps, bool blocking) {
  check(!steps.empty(), "costs are measured on at least one step");
  std::map<std::pair<int, OpKind>, std::vector<double>> lasted;  // by stage and kind
  std::vector<double> messages;
  for (const MeasuredStep& step : steps) {
    for (const OpSpan& span : step.timeline.ops)
      lasted[{schedule.stage_of(span.rank, span.op.chunk), span.op.kind}].push_back(span.end - span.start);
    for (const TransferSpan& transfer : step.timeline.transfers) messages.push_back(transfer.end - transfer.start);
  }
  Costs costs;
  costs.unit = "ms";
  costs.blocking = blocking;
  costs.latency = median_or_zero(messages);
  costs.stages.resize(static_cast<size_t>(schedule.stages()));
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const auto of = [&](OpKind kind) { return median_or_zero(lasted[{stage, kind}]); };
    StageCosts& cost = costs.stages[static_cast<size_t>(stage)];
    cost.forward = of(OpKind::forward);
    cost.backward_input = of(OpKind::backward_input);
    cost.backward_weight = of(OpKind::backward_weight);
    const double whole = of(OpKind::backward);
    if (cost.backward_input + cost.backward_weight == 0) cost.backward_input = whole;  // no split backward passes
    else if (whole > 0) cost.whole_saves = cost.backward_input + cost.backward_weight - whole;
  }
  return costs;
}

}  // namespace trivet
