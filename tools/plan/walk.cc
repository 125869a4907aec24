#include "tools/plan/walk.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/check.h"

namespace trivet {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

// The lane of each of the tape's calls.
std::vector<uint16_t> number_lanes(const Tape& tape, std::vector<Walk::Lane>& lanes) {
  std::map<Walk::Lane, size_t> numbers;
  std::vector<uint16_t> lane_of;
  for (const TapeCall& call : tape.calls) {
    const Walk::Lane lane{call.group, call.kind == CommCall::transfer, call.sends, call.ahead};
    const auto [at, is_new] = numbers.try_emplace(lane, lanes.size());
    if (is_new) lanes.push_back(lane);
    lane_of.push_back(static_cast<uint16_t>(at->second));
  }
  check(lanes.size() <= std::numeric_limits<uint16_t>::max(), "a rank has fewer than 65,536 kinds of calls");
  return lane_of;
}

// [event]: true if the host or a stream other than the event's waits for it.
std::vector<bool> find_waited(const Tape& tape) {
  std::vector<uint8_t> stream(tape.events);
  std::vector<bool> waited(tape.events);
  for (const TapeRecord& record : tape.records) {
    if (record.kind == TapeRecord::record) stream[record.what] = record.stream;
    if (record.kind == TapeRecord::host_wait ||
        (record.kind == TapeRecord::wait && stream[record.what] != record.stream))
      waited[record.what] = true;
  }
  return waited;
}

}  // namespace

Walk::Walk(const Tape& tape, const ReplayCosts& costs) : tape(tape), streams(tape.streams.size()) {
  const std::vector<uint16_t> lane_of = number_lanes(tape, lanes);
  const std::vector<bool> waited = find_waited(tape);
  std::vector<size_t> counts(streams.size());
  for (const TapeRecord& record : tape.records) ++counts[record.stream];
  for (size_t s = 0; s < streams.size(); ++s) streams[s].steps.reserve(counts[s]);
  std::vector<uint32_t> calls(lanes.size());  // per lane, so far
  struct Place {
    uint16_t stream;
    uint32_t step;
  };
  std::vector<Place> events(tape.events);
  int64_t host_ns = 0;
  for (uint32_t number = 0; number < tape.records.size(); ++number) {
    const TapeRecord& record = tape.records[number];
    if (!record.in_graph) host_ns += costs.host_ns(record);
    Stream& stream = streams[record.stream];
    Step step{
        .kind = record.kind, .with_next = record.with_next, .what = record.what, .record = number, .host_ns = host_ns};
    switch (record.kind) {
      case TapeRecord::host_wait: {
        const Place event = events[record.what];
        host_waits.push_back({host_ns, event.stream, event.step});
        for (Stream& one : streams) one.behind.push_back(static_cast<uint32_t>(one.steps.size()));
        continue;
      }
      case TapeRecord::record:
        if (!waited[record.what]) continue;
        events[record.what] = {record.stream, static_cast<uint32_t>(stream.steps.size())};
        break;
      case TapeRecord::wait: {
        const Place event = events[record.what];
        if (!waited[record.what] || event.stream == record.stream) continue;
        step.of = event.stream, step.what = event.step;
        break;
      }
      case TapeRecord::call: step.of = lane_of[record.what], step.sequence = calls[step.of]++; break;
      case TapeRecord::work:
        if (record.in_graph) step.what += static_cast<uint32_t>(tape.works.size());
        break;
      case TapeRecord::graph: continue;  // its host time is part of host_ns of the records that it launches
      default: break;
    }
    stream.steps.push_back(step);
  }
  for (Stream& stream : streams) stream.behind.push_back(kNone);
  for (const bool in_graph : {false, true})
    for (const TapeWork& work : tape.works) work_ns.push_back(costs.work_ns(work, in_graph));
}

}  // namespace trivet
