// Replay: computes when each record on the tapes of all ranks would run, given the costs. It is a discrete-event
// simulation on an integer clock of nanoseconds; results do not depend on the order in which tapes were recorded.
//
//   host     queues a rank's records in order, taking each record's launch time, and waits where the tape waits
//   streams  run their records in order: each starts when it has been queued, its predecessors have finished and the
//            events that its stream waits for are complete
//   calls    start when all ranks of the group have reached them; a transfer when both ends have. The
//            sender of a buffered send does not wait
//   sharing  calls that use the same port of a rank share its bandwidth; compute runs slower while a call is on the
//            rank's wire, or while more threads are busy than there are cores
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tools/plan/tape.h"

namespace trivet {

// The port of a rank that limits a call. Calls share a port's bandwidth, transfers only in their own direction; a call
// on `none` uses no port.
enum class Port : uint8_t { none, link, network };

struct CallCost {
  int64_t ns = 0;
  Port port = Port::none;
  double load = 1;  // fraction of ReplayCosts::slowdown() that applies to concurrent compute
  // On an emulated link: the port, 0 to kQueues - 1, that the call occupies for `ns` on each sending rank, in order of
  // arrival; -1: none. The call ends `latency_ns` after that.
  static constexpr int kQueues = kCommClasses.size();
  int queue = -1;
  int64_t latency_ns = 0;
};

class ReplayCosts {
 public:
  virtual ~ReplayCosts() = default;
  virtual int64_t work_ns(const TapeWork& work, bool in_graph) const = 0;
  virtual CallCost call_cost(const TapeCall& call, const TapeGroups::Group& group) const = 0;
  // Host time to queue a record outside CUDA graphs.
  virtual int64_t host_ns(const TapeRecord&) const { return 0; }
  virtual bool buffered_sends() const { return false; }
  // The factor by which a call at full load slows down compute.
  virtual double slowdown() const { return 1; }
  // Threads per compute stream if all ranks share one node's cores, where any other stream runs on one thread; 0:
  // each rank has its own device.
  virtual int threads() const { return 0; }
  // The relative rate of each thread while this many threads are busy on the node.
  virtual double core_rate(int64_t /*busy_threads*/) const { return 1; }
};

struct ReplayOptions {
  bool spans = false;          // Replayed::spans
  int first_step = 0;          // spans before its start are dropped; steps count from 0
  bool critical_path = false;  // of the last step: Replayed::critical_path
};

// A rank, or several ranks that do the same work at the same times, with the tape of a rank that queues that work.
struct Player {
  const Tape* tape = nullptr;
  int rank = 0;                  // the first of these ranks
  int64_t ranks = 1;             // number of ranks
  std::vector<int> groups = {};  // replaces Tape::groups
  std::vector<int> places = {};  // the rank's index in each group; 0 if it neither sends nor receives in the group
};

// The interval of a record on its stream, or of a phase. A compact form of the Span that it becomes.
struct PlayedSpan {
  uint32_t record = 0;  // index in Tape::records; for a phase, that of its begin_phase
  int64_t start_ns = 0, end_ns = 0;
  int64_t wire_start_ns = 0;  // of a call; for a buffered send, which has no wire time, its end
};

// A segment of the critical path: work, a call, or the host's time to queue the next record.
struct PathPart {
  static constexpr uint32_t kHost = UINT32_MAX;
  int player = 0;
  uint32_t record = kHost;  // index in its tape's records
  int64_t start_ns = 0, end_ns = 0;
};

struct Replayed {
  // [player][step]: when the compute stream finished the step.
  std::vector<std::vector<int64_t>> step_ends;
  // [player][stream], in the order in which they ended.
  std::vector<std::vector<std::vector<PlayedSpan>>> spans;
  // From the time when all ranks have finished the second-to-last step to the time when all have finished the last.
  // Each part begins when its predecessor, the last activity that it waited for, ends. Ties are broken arbitrarily.
  std::vector<PathPart> critical_path;
};

// A player's spans in trace form. groups: those of the replayed tapes.
std::vector<std::vector<Span>> rows_of(const std::vector<std::vector<PlayedSpan>>& spans, const Player& player,
                                       const TapeGroups& groups);

// players: must cover all ranks of the world. Throws Error if ranks deadlock.
Replayed replay(std::span<const Player> players, const TapeGroups& groups, const ReplayCosts& costs,
                const ReplayOptions& options = {});

}  // namespace trivet
