// FlightRecorder: the last calls of one rank's communicators and the progress of each group, for the post-mortem of a
// run that hangs or a rank that dies.
//
// A rank owns one; its communicators write to it, a watchdog reads it. Any thread may call any method. A call costs
// three short locked sections without contention.
//
// A call is enqueued by the host, started when its stream reaches it, and done when this rank's part is over. A call
// that is not done is never overwritten: memory grows to the most ever open at a time, as a host may run far ahead of
// its GPU.
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
  uint64_t number = 0;  // of this rank's calls, from 0
  int group = 0;        // index of FlightLog::groups
  CallSignature call;   // sequence: of the group's collectives, or of this pair's transfers in this direction
  int peer = -1;        // of a transfer, rank of the group
  bool sends = false;   // a transfer: this rank is the sender
  FlightState state = FlightState::none;
  int64_t enqueued_ns = 0, started_ns = 0, done_ns = 0;  // of now_ns(); 0: not yet
};
std::string to_string(const FlightRecord& record);  // without its times

struct FlightGroup {
  std::string name;
  std::vector<int> world_ranks;                                 // of the members, in group order
  int rank = 0;                                                 // this rank's
  uint64_t enqueued = 0, started = 0, done = 0;                 // collectives so far
  std::vector<uint64_t> sends_enqueued{}, receives_enqueued{};  // transfers so far, by peer
  std::vector<uint64_t> sent{};                                 // sends that are done
};

// A snapshot.
struct FlightLog {
  int rank = 0;
  int64_t taken_ns = 0;
  int64_t last_activity_ns = 0;  // when a call last changed its state, or the recorder was made
  std::vector<FlightGroup> groups{};
  std::vector<FlightRecord> records{};  // in order of their numbers
};

class FlightRecorder {
 public:
  static constexpr size_t kCapacity = 256;  // calls; more where more are open

  explicit FlightRecorder(int rank) : rank_(rank), records_(kCapacity), last_activity_ns_(now_ns()) {}

  int add_group(std::string name, std::vector<int> world_ranks, int rank);

  // Returns the slot for start() and finish().
  int enqueue(int group, CallSignature call, int peer = -1, bool sends = false) noexcept;
  void start(int slot) noexcept;
  void finish(int slot, bool failed) noexcept;

  // Called before each read, on the reader's thread, to call start() and finish() for what has happened since. Null:
  // none.
  void set_source(std::function<void()> source);

  // The started call that has been open for longest.
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
// The same group as `world`; records its calls and those of the groups split off it. `recorder` and `faults` (null:
// none) outlive the result. On a device, events on the stream tell when a call runs (device_calls.h).
std::unique_ptr<Communicator> with_flight_recorder(Communicator& world, FlightRecorder& recorder,
                                                   CallFaults* faults = nullptr);

}  // namespace trivet
