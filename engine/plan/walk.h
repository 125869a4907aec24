// What the replay (replay.cc) is made of: a tape by streams, a call that is waited for, and what takes time.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/plan/replay.h"

namespace trivet {

// Progress is counted in parts of a nanosecond at full rate, so that rates are integers.
inline constexpr int64_t kFullRate = int64_t{1} << 16;

// A tape as the replay walks through it, stream by stream.
struct Walk {
  Walk(const Tape& tape, const ReplayCosts& costs);

  struct Step {
    TapeRecord record;
    int64_t host_ns = 0;      // of the host up to and with this record, but for its waits
    uint32_t host_waits = 0;  // before it
    uint32_t sequence = 0;    // of a call, among those of its group, or its pair and direction
  };
  struct Place {
    uint8_t stream = 0;
    uint32_t index = 0;
  };
  struct HostWait {
    int64_t host_ns = 0;
    Place event;
  };
  const Tape& tape;
  std::vector<std::vector<Step>> streams;
  std::vector<Place> events;  // where they are recorded
  std::vector<HostWait> host_waits;
  std::vector<std::array<int64_t, 2>> work_ns;  // [work][in a graph]
};

struct CallKey {
  int group, from, to;  // from, to: of a transfer, else -1
  uint32_t sequence;
  bool operator==(const CallKey&) const = default;
};
struct HashOfCall {
  size_t operator()(const CallKey& key) const {
    uint64_t hash = static_cast<uint64_t>(key.group) << 32 | key.sequence;
    hash = (hash ^ static_cast<uint64_t>(key.from) << 20 ^ static_cast<uint64_t>(key.to) << 40) * 0x9E3779B97F4A7C15ull;
    return static_cast<size_t>(hash ^ hash >> 31);
  }
};

struct Member {
  int rank = 0;
  uint8_t stream = 0;
  bool goes_on = false;  // a buffered send: its stream does not wait for the end
};

// What takes time: a call, or the work of a stream.
struct Activity {
  int64_t left = 0;   // at `since`, in parts of kFullRate
  int64_t since = 0;  // ns
  int64_t rate = kFullRate;
  uint32_t version = 0;  // of the heap's entry that counts

  void begin(int64_t ns, int64_t now) { left = ns * kFullRate, since = now, rate = kFullRate; }
  int64_t end() const { return since + (left + rate - 1) / rate; }
  void set_rate(int64_t next, int64_t now) {
    left -= (now - since) * rate;
    since = now, rate = next;
  }
};

struct OpenCall {
  Activity activity;
  std::vector<Member> members;  // that are there
  size_t expected = 0;
  CallCost cost;
  int64_t start_ns = 0;
  int64_t arrival_ns = 0;  // over a link whose ports queue, of a transfer that was sent
  bool active = false;
};

}  // namespace trivet
