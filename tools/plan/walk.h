// Walk: a tape prepared for the replay (replay.cc): split into streams, with the data that the replay needs for each
// record, and without events that neither the host nor another stream waits for. Ranks that share a tape share a walk.
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
    bool with_next = false;  // calls only
    uint16_t of = 0;         // call: index in `lanes`; wait: the event's stream
    uint32_t what = 0;       // work: index in work_ns; call: index in Tape::calls; wait: the event's step in its stream
    uint32_t sequence = 0;   // call: its number within the lane
    uint32_t record = 0;     // index in Tape::records
    int64_t host_ns = 0;     // host time up to and including this step, without waits
  };
  struct Stream {
    std::vector<Step> steps;
    std::vector<uint32_t> behind;  // [host wait]: the first step after it; the last entry is for "no host wait"
  };
  struct HostWait {
    int64_t host_ns = 0;
    uint16_t stream = 0;  // of the event
    uint32_t step = 0;
  };
  // Calls matched in order with those of other ranks: a group's collectives, or transfers from one rank to another.
  struct Lane {
    int group = 0;  // index in Tape::groups
    bool transfers = false, sends = false;
    int ahead = 0;
    auto operator<=>(const Lane&) const = default;
  };

  const Tape& tape;
  std::vector<Stream> streams;
  std::vector<HostWait> host_waits;
  std::vector<Lane> lanes;
  std::vector<int64_t> work_ns;  // [work], followed by the same work items inside a graph
};

}  // namespace trivet
