// FlightRecorder: records the last calls of one rank's communicators and each group's progress, for the post-mortem of
// a run that hangs or a rank that dies.
//
// Each rank owns one; its communicators write to it and a watchdog reads it. Any thread may call any method. A call
// costs three short, uncontended critical sections.
//
// A call is enqueued by the host, started when its stream reaches it, and done when this rank's part has finished. An
// unfinished call is never overwritten: a host may run far ahead of its GPU, so memory grows to the largest number of
// calls ever open at the same time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/words.h"
#include "kernels/base/trace.h"
#include "parallel/comm/call.h"

namespace trivet {

enum class FlightState : uint8_t { none, enqueued, started, done, failed };
constexpr auto words_of(FlightState) { return word_list("none", "enqueued", "started", "done", "failed"); }

struct FlightRecord {
  uint64_t number = 0;  // index among this rank's calls
  int group = 0;        // index in FlightLog::groups
  CallSignature call;   // sequence: counts the group's collectives, or this pair's transfers in this direction
  int peer = -1;        // transfers: the peer's rank in the group
  bool sends = false;   // transfers: this rank is the sender
  FlightState state = FlightState::none;
  int64_t enqueued_ns = 0, started_ns = 0, done_ns = 0;  // in now_ns(); 0: not yet
};
std::string to_string(const FlightRecord& record);  // without the times

struct FlightGroup {
  std::string name;
  std::vector<int> world_ranks;                                 // the members', in group order
  int rank = 0;                                                 // this rank's index in the group
  uint64_t enqueued = 0, started = 0, done = 0;                 // collectives so far
  std::vector<uint64_t> sends_enqueued{}, receives_enqueued{};  // transfers so far, by peer
  std::vector<uint64_t> sent{};                                 // sends done, by peer
};

// A snapshot of a recorder.
struct FlightLog {
  int rank = 0;
  int64_t taken_ns = 0;
  int64_t last_activity_ns = 0;  // when a call last changed state, or the recorder was created
  std::vector<FlightGroup> groups{};
  std::vector<FlightRecord> records{};  // ordered by number
};

class FlightRecorder {
 public:
  static constexpr size_t kCapacity = 256;  // calls; grows if more are open

  explicit FlightRecorder(int rank) : rank_(rank), records_(kCapacity), last_activity_ns_(now_ns()) {}

  int add_group(std::string name, std::vector<int> world_ranks, int rank);

  // Returns the slot for start() and finish().
  int enqueue(int group, CallSignature call, int peer = -1, bool sends = false) noexcept;
  void start(int slot) noexcept;
  void finish(int slot, bool failed) noexcept;

  // `source` runs before each read, on the reader's thread, and calls start() and finish() for what has happened since
  // the previous read. Null: no source.
  void set_source(std::function<void()> source);

  // The started call that has been open longest.
  std::optional<FlightRecord> oldest_started() const;
  int64_t last_activity_ns() const;
  FlightLog log() const;

 private:
  void ask_source() const;

  const int rank_;
  mutable std::mutex source_mutex_;
  std::function<void()> source_;  // guarded by source_mutex_
  mutable std::mutex mutex_;      // guards the rest
  std::vector<FlightRecord> records_;
  size_t next_ = 0;
  uint64_t calls_ = 0;
  std::vector<FlightGroup> groups_;
  int64_t last_activity_ns_;
};

class CallFaults;
class Communicator;
// Returns the same group as `world`, recording its calls and those of groups split from it. `recorder` and `faults`
// (null: none) must outlive the result. On a device, events on the stream tell when a call runs (device_calls.h).
std::unique_ptr<Communicator> with_flight_recorder(Communicator& world, FlightRecorder& recorder,
                                                   CallFaults* faults = nullptr);

}  // namespace trivet
