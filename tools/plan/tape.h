// Tape: the work that one rank's host queues while the real trainer runs on a recording back end, whose device has no
// memory, whose ops compute nothing and whose communicators have no peers. The work does not depend on any results, so
// one thread can record any rank of any layout in isolation. replay.h simulates the tapes of all ranks together.
//
// The queued operations do not depend on values: a step accepts any value copied from the device (TapeOptions::number),
// and a test records with different values.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "engine/config/validate.h"
#include "kernels/base/tensor.h"
#include "kernels/base/trace.h"
#include "parallel/comm/back_end.h"

namespace trivet {

// An op's work, without its time and stream. Equal work items are stored once.
struct TapeWork {
  // memory: bound by the bytes moved; copy: between host and device
  enum Kind : uint8_t { memory, loss, gemm, attention, copy };
  const char* name = "";
  Category category = Category::compute;
  Kind kind = memory;
  DType dtype = DType::f32;     // of a GEMM's operands when they are multiplied, or of attention's
  bool backward = false;        // of attention
  bool activation = false;      // a GEMM whose epilogue applies an activation, or multiplies by its derivative
  bool recomputed = false;      // runs in the backward pass, to recompute activations
  int64_t m = 0, n = 0, k = 0;  // of a GEMM; of attention: queries, keys and head_dim
  int64_t batch = 1;            // of attention: samples times heads
  int64_t flops = 0;            // of a GEMM or of attention, excluding those above a causal diagonal
  int64_t bytes = 0;            // read and written, counting each argument once
  WireCost wire = {};           // of a copy between threads that stands for the whole call
  bool operator==(const TapeWork&) const = default;
};

// A collective, or one end of a transfer.
struct TapeCall {
  const char* name = "";
  CommCall kind = CommCall::barrier;
  bool sends = false;
  int group = 0;      // index in Tape::groups
  int ahead = 0;      // of a transfer: (peer - rank) mod size, in the group
  int64_t bytes = 0;  // of Call::whole()
  WireCost cost = {};
  bool operator==(const TapeCall&) const = default;
};

// The groups of all ranks.
class TapeGroups {
 public:
  struct Group {
    std::string name;
    std::vector<int> world_ranks;
    Category category = Category::compute;
    int occurrence = 0;  // index among groups with the same name and members, created in the same order by all members
    int arrivals = 0;    // number of players in its collectives; 0: one per member
    auto operator<=>(const Group&) const = default;
  };
  const Group& operator[](int group) const { return groups_[static_cast<size_t>(group)]; }
  int size() const { return static_cast<int>(groups_.size()); }
  int add(const Group& group);  // returns its number; equal groups are stored once

 private:
  std::deque<Group> groups_;
  std::map<Group, int> numbers_;
};

struct TapeRecord {
  enum Kind : uint8_t {
    work,         // what: index in Tape::works
    call,         // what: index in Tape::calls
    graph,        // launches the next `what` records, which are in_graph
    record,       // what: an event; each recording counts as a new event
    wait,         // what: a previously recorded event
    host_wait,    // same, but the host waits
    begin_phase,  // what: index in Tape::works, for the name
    end_phase,
    mark,  // a step has been queued
  };
  Kind kind = work;
  uint8_t stream = 0;
  bool in_graph = false;
  bool with_next = false;  // a call that starts together with the next one: an exchange
  uint32_t what = 0;
  uint32_t label = 0;  // index in Tape::labels
  bool operator==(const TapeRecord&) const = default;
};

struct Tape {
  int rank = 0;
  std::vector<std::string> streams = {};  // their names in a trace; stream 0 is the compute stream
  std::vector<TapeWork> works = {};
  std::vector<TapeCall> calls = {};
  std::vector<SpanLabel> labels = {};
  std::vector<TapeRecord> records = {};
  std::vector<int> groups = {};  // indices in TapeGroups
  uint32_t events = 0;
  int steps = 0;
};

struct TapeOptions {
  int steps = 2;          // the second represents all later ones: it begins in the state that the first left
  bool one_ahead = true;  // the next step's passes are queued before a step's results are read, as on a GPU
  bool cpu = false;       // ops as on a CPU, where a GEMM's activation is a separate op
  float number = 1;       // the value of all fp32 elements copied to the host
};

// Removes the emulated links from a configuration. Returns true if there were any.
bool remove_links(CommConfig& comm);

// Records a rank of the world, and adds its groups to `groups`. config, layout: as for the trainer; emulated links are
// not recorded.
Tape record_tape(const Config& config, const Layout& layout, int rank, TapeGroups& groups,
                 const TapeOptions& options = {});

}  // namespace trivet
