// Replay: when everything on the tapes of all ranks would happen, given what each call costs. A discrete-event
// simulation on an integer clock of nanoseconds; nothing depends on the order in which tapes were recorded.
//
//   host     queues a rank's records in their order, each for what its launch costs it, and waits where the tape does
//   streams  take their records in order: one starts when it has been queued, its predecessors have finished and the
//            events that its stream waits for are complete
//   calls    start when all ranks of the group have reached them; a transfer when both ends have. A buffered send
//            finishes when its data arrives
//   sharing  calls that use the same port of a rank share its rate; compute runs slower while a call is on the rank's
//            wire, or while more threads work than the ranks have cores
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tools/plan/tape.h"

namespace trivet {

// The port of a rank that bounds a call. Calls share a port's rate, transfers that of their direction; `none`
// takes no time of any.
enum class Port : uint8_t { none, link, network };

struct CallCost {
  int64_t ns = 0;
  Port port = Port::none;
  double load = 1;  // share of ReplayCosts::slowdown() that concurrent compute feels
  // On an emulated link: the port of each rank that sends which it occupies for `ns`, first come, first served, from 0
  // to kQueues - 1; -1: none. The call lasts for `latency_ns` more.
  static constexpr int kQueues = kCommClasses.size();
  int queue = -1;
  int64_t latency_ns = 0;
};

class ReplayCosts {
 public:
  virtual ~ReplayCosts() = default;
  virtual int64_t work_ns(const TapeWork& work, bool in_graph) const = 0;
  virtual CallCost call_cost(const TapeCall& call, const TapeGroups::Group& group) const = 0;
  // Host time to queue a record that is in no graph.
  virtual int64_t host_ns(const TapeRecord&) const { return 0; }
  virtual bool buffered_sends() const { return false; }
  // The factor by which a call of full load slows compute.
  virtual double slowdown() const { return 1; }
  // Threads of a compute stream, where all ranks share the cores of one node, and other streams have one; 0: each rank
  // has a device of its own.
  virtual int threads() const { return 0; }
  // The relative rate of each thread with this many busy threads on the node.
  virtual double core_rate(int64_t /*busy_threads*/) const { return 1; }
};

struct ReplayOptions {
  bool spans = false;          // Replayed::spans
  int first_step = 0;          // spans before its start are left out; steps count from 0
  bool critical_path = false;  // of the last step: Replayed::critical_path
};

// A rank, or several that do the same at the same times, with the tape of a rank that queues the same.
struct Player {
  const Tape* tape = nullptr;
  int rank = 0;                  // the first of them
  int64_t ranks = 1;             // how many
  std::vector<int> groups = {};  // in the place of Tape::groups
  std::vector<int> places = {};  // of the rank in them; 0 if it neither sends nor receives
};

// A stream's work for a record, or from the beginning of a phase to its end. Smaller than the Span that it becomes.
struct PlayedSpan {
  uint32_t record = 0;  // of the tape; of a phase, its beginning
  int64_t start_ns = 0, end_ns = 0;
  int64_t wire_start_ns = 0;  // of a call; a buffered send has no wire, and this is its end
};

// A part of the critical path: the time of a work or a call, or of the host to queue what came next.
struct PathPart {
  static constexpr uint32_t kHost = UINT32_MAX;
  int player = 0;
  uint32_t record = kHost;  // of its tape
  int64_t start_ns = 0, end_ns = 0;
};

struct Replayed {
  // [player][step]: when the compute stream had done the step.
  std::vector<std::vector<int64_t>> step_ends;
  // [player][stream], in the order in which they ended.
  std::vector<std::vector<std::vector<PlayedSpan>>> spans;
  // From the end of the last step but one, on the rank that ends it last, to that of the last: each part begins when
  // the one before ends, which it waited for last. Of several that end simultaneously, any.
  std::vector<PathPart> critical_path;
  int64_t records = 0;  // played
};

// A player's spans as a trace has them. groups: those of the played tapes.
std::vector<std::vector<Span>> rows_of(const std::vector<std::vector<PlayedSpan>>& spans, const Player& player,
                                       const TapeGroups& groups);

// players: for all ranks of the world. Throws Error if ranks wait for each other for ever.
Replayed replay(std::span<const Player> players, const TapeGroups& groups, const ReplayCosts& costs,
                const ReplayOptions& options = {});

}  // namespace trivet
