#include "engine/metrics/measured.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <optional>

#include "base/files.h"
#include "base/json.h"
#include "base/statistics.h"
#include "kernels/base/check.h"

namespace trivet {
namespace {

using nlohmann::json;

// The event lines of a trace (perfetto.h writes one event a line).
template <class F>
void for_each_event(const std::string& path, F&& f) {
  for_each_line(path, [&](const std::string& line, int64_t number) {
    if (!line.starts_with(",{")) return;
    const json event = parse_json(std::string_view(line).substr(1), BadJson::discarded);
    if (event.is_discarded()) throw DataError(fmt::format("{} line {}: is no trace event", path, number));
    try {
      f(event);
    } catch (const json::exception& error) {
      throw DataError(fmt::format("{} line {}: is no event of a Trivet trace: {}", path, number, json_problem(error)));
    }
  });
}

std::optional<OpKind> kind_of(const std::string& name) {
  for (const OpKind kind : {OpKind::forward, OpKind::backward, OpKind::backward_input, OpKind::backward_weight})
    if (name == letter_of(kind)) return kind;
  return std::nullopt;
}

struct Interval {
  double start, end;  // ms
};

// One pipeline rank in one step, as traced.
struct RankStep {
  std::vector<OpSpan> ops;     // from their phase spans, which begin with the wait for their input
  std::vector<Interval> work;  // on the compute stream
  std::map<Channel, std::vector<Interval>> messages;
};

struct Reader {
  const Schedule& schedule;
  std::map<std::string, Channel> channels{};           // by the name of their row
  std::map<int, int> pipeline_rank{};                  // by pid, of the replica that is read
  std::map<std::pair<int, int>, std::string> row{};    // by pid, tid
  std::map<int64_t, std::map<int, RankStep>> steps{};  // by step, pipeline rank

  explicit Reader(const Schedule& s) : schedule(s) {
    for (int rank = 0; rank < s.p; ++rank)
      for (const Op& op : s.programs[static_cast<size_t>(rank)])
        if (const auto channel = s.sends(rank, op)) channels[to_string(*channel)] = *channel;
  }

  void add(const json& event) {
    const int pid = event.at("pid").get<int>(), tid = event.at("tid").get<int>();
    const std::string name = event.at("name").get<std::string>(), type = event.at("ph").get<std::string>();
    if (type == "M" && name == "process_name") {
      const std::string text = event.at("args").at("name").get<std::string>();
      int rank = 0, tp = 0, pp = 0, dp = 0;
      if (std::sscanf(text.c_str(), "rank %d (tp %d, pp %d, dp %d)", &rank, &tp, &pp, &dp) == 4 && tp == 0 && dp == 0)
        pipeline_rank[pid] = pp;
    } else if (type == "M" && name == "thread_name") {
      row[{pid, tid}] = event.at("args").at("name").get<std::string>();
    } else if (type == "X" && pipeline_rank.contains(pid)) {
      add_span(event, name, pipeline_rank[pid], row[{pid, tid}]);
    }
  }

  void add_span(const json& event, const std::string& name, int rank, const std::string& stream) {
    if (event.at("cat") == "wait") return;  // part of a communication
    const json& args = event.at("args");
    const double start = event.at("ts").get<double>() / 1e3;
    const Interval span{start, start + event.at("dur").get<double>() / 1e3};
    RankStep& step = steps[args.at("step").get<int64_t>()][rank];
    if (const auto channel = channels.find(stream); channel != channels.end()) {
      step.messages[channel->second].push_back(span);
    } else if (stream == "compute" && event.at("cat") == "phase") {
      const auto kind = kind_of(name);
      if (!kind) return;
      const Op op{.kind = *kind, .microbatch = args.at("microbatch").get<int>(), .chunk = args.value("chunk", 0)};
      step.ops.push_back({rank, op, span.start, span.end});
    } else if (stream == "compute") {
      step.work.push_back(span);
    }
  }
};

// Cuts the op to the work inside it. `work` is in the order of its starts.
void tighten(OpSpan& op, const std::vector<Interval>& work) {
  const auto first = std::lower_bound(work.begin(), work.end(), op.start,
                                      [](const Interval& x, double time) { return x.start < time; });
  if (first == work.end() || first->start >= op.end) return;  // an op without work
  const double end = op.end;
  op.start = first->start;
  op.end = first->end;
  for (auto x = first; x != work.end() && x->start < end; ++x) op.end = std::max(op.end, x->end);
}

// The messages of a channel: the sends of one end and the receives of the other, in order.
void add_transfers(Timeline& timeline, const Schedule& schedule, const Channel& channel,
                   const std::vector<Interval>& sends, const std::vector<Interval>& receives) {
  std::vector<Op> ops;
  for (const Op& op : schedule.programs[static_cast<size_t>(channel.from)])
    if (schedule.sends(channel.from, op) == channel) ops.push_back(op);
  // A send that is still under way when its rank's step ends is traced with the next step: such a step has no pairs.
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
  for_each_event(trace_path, [&](const json& event) { reader.add(event); });
  std::vector<MeasuredStep> measured;
  for (auto& [step, ranks] : reader.steps)
    if (auto timeline = timeline_of(schedule, ranks)) measured.push_back({step, std::move(*timeline)});
  if (measured.empty())
    throw DataError(fmt::format("{}: holds no whole step of {} pipeline ranks with the schedule {}", trace_path,
                                schedule.p, schedule.kind));
  return measured;
}

int ranks_of_trace(const std::string& trace_path) {
  int ranks = 0;
  for_each_event(trace_path, [&](const json& event) { ranks += event.at("name") == "process_name" ? 1 : 0; });
  return ranks;
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
    if (cost.backward_input + cost.backward_weight == 0) cost.backward_input = whole;  // no halves in this schedule
    else if (whole > 0) cost.whole_saves = cost.backward_input + cost.backward_weight - whole;
  }
  return costs;
}

}  // namespace trivet
