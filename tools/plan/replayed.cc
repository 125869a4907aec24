// The spans of a replay as a trace has them.
#include <algorithm>

#include "tools/plan/replay.h"

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
  span.info.ranks = static_cast<int>(group.world_ranks.size()), span.info.cost = call.cost;
  // A wire of 0 would be an unknown one.
  span.wire_start_ns = std::max<int64_t>(played.wire_start_ns, 1),
  span.wire_end_ns = std::max<int64_t>(played.end_ns, 1);
  return span;
}

}  // namespace

std::vector<std::vector<Span>> Replayed::Traced::rows(const Player& of, const TapeGroups& groups) const {
  std::vector<std::vector<Span>> rows(played.size());
  for (size_t s = 0; s < rows.size(); ++s) {
    rows[s].reserve(played[s].size());
    for (const PlayedSpan& span : played[s]) rows[s].push_back(span_of(span, of, groups));
  }
  return rows;
}

}  // namespace trivet
