#include "engine/plan/walk.h"

#include <map>
#include <tuple>

namespace trivet {

Walk::Walk(const Tape& tape, const ReplayCosts& costs) : tape(tape), streams(tape.streams.size()), events(tape.events) {
  std::map<std::tuple<int, int, bool>, uint32_t> calls;  // of a group; of a pair and direction
  int64_t host_ns = 0;
  for (const TapeRecord& record : tape.records) {
    if (!record.in_graph) host_ns += costs.host_ns(record);
    if (record.kind == TapeRecord::host_wait) {
      host_waits.push_back({host_ns, events[record.what]});
      continue;
    }
    std::vector<Step>& stream = streams[record.stream];
    Step step{.record = record, .host_ns = host_ns, .host_waits = static_cast<uint32_t>(host_waits.size())};
    if (record.kind == TapeRecord::record) events[record.what] = {record.stream, static_cast<uint32_t>(stream.size())};
    if (record.kind == TapeRecord::call) {
      const TapeCall& call = tape.calls[record.what];
      step.sequence = calls[{call.group, call.ahead, call.sends}]++;
    }
    stream.push_back(step);
  }
  for (const TapeWork& work : tape.works) work_ns.push_back({costs.work_ns(work, false), costs.work_ns(work, true)});
}

}  // namespace trivet
