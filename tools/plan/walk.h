// Walk: a tape as the replay (replay.cc) walks through it: its streams apart, each record with the replay's needs of
// it, events that no other stream waits for left out. Ranks that share a tape share its walk.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tools/plan/replay.h"

namespace trivet {

struct Walk {
  Walk(const Tape& tape, const ReplayCosts& costs);

  struct Step {
    TapeRecord::Kind kind = TapeRecord::work;
    bool with_next = false;  // of a call
    uint16_t of = 0;         // of a call: of `lanes`; of a wait: the stream of the event
    uint32_t what = 0;  // of a work: of work_ns; of a call: of Tape::calls; of a wait: the event's step in its stream
    uint32_t sequence = 0;  // of a call: in its lane
    uint32_t record = 0;    // of Tape::records
    int64_t host_ns = 0;    // of the host up to and with it, but for its waits
  };
  struct Stream {
    std::vector<Step> steps;
    std::vector<uint32_t> behind;  // [host wait] the first step after it; and last, none
  };
  struct HostWait {
    int64_t host_ns = 0;
    uint16_t stream = 0;  // of the event
    uint32_t step = 0;
  };
  // Calls that meet those of other ranks in their order: a group's collectives, or transfers from one rank to another.
  struct Lane {
    int group = 0;  // of Tape::groups
    bool transfers = false, sends = false;
    int ahead = 0;
    auto operator<=>(const Lane&) const = default;
  };

  const Tape& tape;
  std::vector<Stream> streams;
  std::vector<HostWait> host_waits;
  std::vector<Lane> lanes;
  std::vector<int64_t> work_ns;  // [work], then [work] in a graph
};

}  // namespace trivet
