#include "tools/draw/step_timeline.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <set>
#include <tuple>

#include "base/check.h"
#include "base/statistics.h"
#include "kernels/base/trace.h"
#include "kernels/layer_ops.h"

namespace trivet {
namespace {

// Each step's window. Calls may begin earlier, during the previous step.
std::map<int64_t, Interval> windows_of(const std::string& path) {
  std::map<int64_t, Interval> windows;
  for_each_span(path, [&](const TraceSpan& span) {
    if (span.is_work()) {
      Interval& window = windows.try_emplace(span.step, span.time).first->second;
      window = {std::min(window.begin, span.time.begin), std::max(window.end, span.time.end)};
    } else if (const auto window = windows.find(span.step); span.is_call() && window != windows.end()) {
      window->second.end = std::max(window->second.end, span.time.end);
    }
  });
  if (windows.empty()) throw DataError(path + ": holds no step: no rank computes anything in it");
  for (auto& [step, window] : windows)
    if (const auto before = windows.find(step - 1); before != windows.end())
      window.begin = std::min(window.begin, before->second.end);
  return windows;
}

// The name of the call's stream without its number, if it has one; on the compute stream, the call's class and name.
std::string family_of(const TraceSpan& call) {
  if (call.row == "compute") return fmt::format("{} {}", call.category.substr(5), call.name);
  return call.row.substr(0, call.row.find_last_not_of(" 0123456789") + 1);
}

bool starts_first(const TraceSpan& x, const TraceSpan& y) { return x.time.begin < y.time.begin; }

// The spans of one rank and step, added in file order.
struct RankSpans {
  RankTimeline timeline{};
  std::vector<TraceSpan> work{};
  std::map<std::tuple<size_t, std::string, int>, TimelineLane> lanes{};  // by class, family, bucket

  void add(const TraceSpan& span) {
    timeline.rank = span.rank;
    timeline.name = span.process;
    if (span.is_work()) {
      timeline.computed.push_back(span.time);
      if (span.name == op::Amax::kSpan.name || span.name == op::Quantize::kSpan.name)
        timeline.quantising_ns += span.time.length();
      work.push_back(span);
    } else if (span.is_call()) {
      const std::string comm_class = span.category.substr(5), family = family_of(span);
      TimelineLane& lane = lanes[{class_of(comm_of(comm_class)), family, span.bucket}];
      if (span.bucket >= 0) lane.layer = span.layer;
      lane.name = span.bucket >= 0 ? fmt::format("{} b{}", family, span.bucket) : family;
      lane.comm_class = comm_class;
      lane.calls.push_back(span);
    } else if (span.microbatch >= 0 && std::set<std::string>{"F", "B", "I", "W"}.contains(span.name)) {
      timeline.ops.push_back(span);
    }
  }

  // A layer is split at gaps in its compute longer than `visible` nanoseconds.
  RankTimeline finish(int64_t visible) {
    timeline.computed = united(std::move(timeline.computed));
    std::ranges::sort(work, starts_first);
    std::vector<TraceSpan>& layers = timeline.layers;
    for (TraceSpan& span : work) {
      if (span.category == "optimizer") span.layer = "optimizer", span.microbatch = -1;
      if (span.layer.empty()) continue;
      if (layers.empty() || layers.back().layer != span.layer || layers.back().microbatch != span.microbatch ||
          span.time.begin - layers.back().time.end > visible)
        layers.push_back(span);
      layers.back().time.end = std::max(layers.back().time.end, span.time.end);
    }
    for (auto& [key, lane] : lanes) {
      std::ranges::sort(lane.calls, starts_first);
      timeline.lanes.push_back(std::move(lane));
    }
    return std::move(timeline);
  }
};

std::vector<std::string> row_of(const StepTimeline& step, const RankTimeline& rank, const TimelineLane& lane) {
  int64_t bytes = 0, wire = 0, exposed = 0, matched = 0, done = 0;
  for (const TraceSpan& call : lane.calls) {
    if (matched == 0 && call.wire.length() > 0) matched = call.wire.begin;
    if (call.wire.length() > 0) bytes += call.bytes;
    wire += call.wire.length();
    exposed += length_of(step.exposed(rank, call));
    done = std::max(done, call.time.end);
  }
  const auto text = [](int64_t ns) { return fmt::format("{:.2f}", static_cast<double>(ns) / 1e6); };
  const auto at = [&](int64_t ns) { return text(ns - step.window.begin); };
  return {fmt::format("{}", rank.rank),
          lane.name,
          fmt::format("{}", lane.calls.size()),
          fmt::format("{:.3f}", static_cast<double>(bytes) / 1e6),
          at(lane.calls.front().ready_ns),
          at(lane.calls.front().time.begin),
          matched == 0 ? "-" : at(matched),
          at(done),
          text(wire),
          text(exposed),
          wire == 0 ? "-" : fmt::format("{:.3g}", static_cast<double>(bytes) / static_cast<double>(wire)),
          lane.layer};
}

}  // namespace

int64_t choose_step(const std::string& trace_path, std::map<int64_t, double> lengths, std::optional<int64_t> wanted) {
  const int64_t first = lengths.begin()->first, last = lengths.rbegin()->first;
  if (wanted && !lengths.contains(*wanted))
    throw ConfigError(
        fmt::format("{} has the steps {} to {}, but step {} is asked for", trace_path, first, last, *wanted));
  if (wanted) return *wanted;
  if (lengths.size() > 1 && first == 1) lengths.erase(first);
  std::vector<std::pair<double, int64_t>> sorted;
  for (const auto& [step, length] : lengths) sorted.emplace_back(length, step);
  return upper_median(sorted).second;
}

StepTimeline read_step_timeline(const std::string& trace_path, std::optional<int64_t> step,
                                const std::vector<int64_t>& ranks) {
  const std::map<int64_t, Interval> windows = windows_of(trace_path);
  std::map<int64_t, double> lengths;
  for (const auto& [number, window] : windows) lengths[number] = static_cast<double>(window.length());
  const int64_t chosen = choose_step(trace_path, lengths, step);
  StepTimeline timeline{.step = chosen, .window = windows.at(chosen)};
  std::map<int64_t, RankSpans> spans;
  for_each_span(trace_path, [&](const TraceSpan& span) {
    const bool wanted = ranks.empty() ? span.first_of_stage : std::ranges::count(ranks, span.rank) > 0;
    if (wanted && span.step == chosen) spans[span.rank].add(span);
  });
  for (const int64_t rank : ranks)
    if (!spans.contains(rank))
      throw ConfigError(fmt::format("{}: has no rank {} in step {}", trace_path, rank, chosen));
  for (auto& [rank, of_rank] : spans) timeline.ranks.push_back(of_rank.finish(timeline.window.length() / 1000));
  return timeline;
}

TextBlock table_of(const StepTimeline& timeline) {
  TextBlock table{.title = fmt::format("step {}: {:.2f} ms from its first work to its last", timeline.step,
                                       static_cast<double>(timeline.window.length()) / 1e6)};
  const auto most = std::ranges::max_element(timeline.ranks, {}, &RankTimeline::quantising_ns);
  if (most != timeline.ranks.end() && most->quantising_ns > 0)
    table.title += fmt::format("; rank {} quantises operands for {:.2f} ms", most->rank,
                               static_cast<double>(most->quantising_ns) / 1e6);
  table.column("rank", 'r'), table.column("calls on", 'l');
  for (const char* name : {"calls", "MB", "ready", "called", "matched", "done", "wire ms", "exposed ms", "GB/s"})
    table.column(name, 'r');
  table.column("layer", 'l');
  for (const RankTimeline& rank : timeline.ranks)
    for (const TimelineLane& lane : rank.lanes) table.rows.push_back(row_of(timeline, rank, lane));
  return table;
}

}  // namespace trivet
