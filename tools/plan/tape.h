// Tape: the work that the host of one rank queues while the real trainer runs on a recording back end, whose device has
// no memory, whose ops compute nothing and whose communicators have no peers. A step does not wait for its results, so
// one thread records any rank of any layout on its own. replay.h plays the tapes of all ranks against each other.
//
// The queued operations do not depend on values: a step takes the numbers that the device "reads"
// (TapeOptions::number), and a test records with others.
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

// An op's work, apart from when and where: equal ones are stored once.
struct TapeWork {
  // memory: bound by the bytes that it moves; copy: between the host and the device
  enum Kind : uint8_t { memory, loss, gemm, attention, copy };
  const char* name = "";
  Category category = Category::compute;
  Kind kind = memory;
  DType dtype = DType::f32;     // of a GEMM's operands as they are multiplied, and of attention's
  bool backward = false;        // of attention
  bool activation = false;      // a GEMM with an epilogue that applies one, or multiplies by its derivative
  bool recomputed = false;      // in the backward pass, to restore activations
  int64_t m = 0, n = 0, k = 0;  // of a GEMM; of attention: queries, keys and the width of a head
  int64_t batch = 1;            // of attention: heads of all samples
  int64_t flops = 0;            // of a GEMM; of attention, those above the diagonal left out
  int64_t bytes = 0;            // read and written, each argument once
  WireCost wire = {};           // of a copy between threads that makes up the whole call
  bool operator==(const TapeWork&) const = default;
};

// A collective, or one end of a transfer.
struct TapeCall {
  const char* name = "";
  CommCall kind = CommCall::barrier;
  bool sends = false;
  int group = 0;      // of Tape::groups
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
    int occurrence = 0;  // among those of its name and members, which all of them make in the same order
    int arrivals = 0;    // players that come to its collectives; 0: a player for each member
    auto operator<=>(const Group&) const = default;
  };
  const Group& operator[](int group) const { return groups_[static_cast<size_t>(group)]; }
  int size() const { return static_cast<int>(groups_.size()); }
  int add(const Group& group);  // or the number of the one that is there

 private:
  std::deque<Group> groups_;
  std::map<Group, int> numbers_;
};

struct TapeRecord {
  enum Kind : uint8_t {
    work,         // what: of Tape::works
    call,         // what: of Tape::calls
    graph,        // launches the `what` records that follow, which are in_graph
    record,       // what: an event; each recording of one is an event of its own
    wait,         // what: an event recorded before
    host_wait,    // the same; the host waits
    begin_phase,  // what: of Tape::works, by its name
    end_phase,
    mark,  // a step has been queued
  };
  Kind kind = work;
  uint8_t stream = 0;
  bool in_graph = false;
  bool with_next = false;  // a call that starts together with the next one: an exchange
  uint32_t what = 0;
  uint32_t label = 0;  // of Tape::labels
  bool operator==(const TapeRecord&) const = default;
};

struct Tape {
  int rank = 0;
  std::vector<std::string> streams = {};  // their names in a trace; stream 0 is the compute stream
  std::vector<TapeWork> works = {};
  std::vector<TapeCall> calls = {};
  std::vector<SpanLabel> labels = {};
  std::vector<TapeRecord> records = {};
  std::vector<int> groups = {};  // of TapeGroups
  uint32_t events = 0;
  int steps = 0;
};

struct TapeOptions {
  int steps = 2;          // the second is like all that follow: the ranks come to it as they left the first
  bool one_ahead = true;  // the next step's passes are queued before a step's numbers are read, as on a GPU
  bool cpu = false;       // the ops are a CPU's, whose GEMMs leave the activation to an op of its own
  float number = 1;       // all that is copied to the host
};

// Takes the emulated links out of a configuration; whether there were any.
bool remove_links(CommConfig& comm);

// Records a rank of the world, and adds its groups to `groups`. config, layout: as the trainer takes them; links are
// not recorded.
Tape record_tape(const Config& config, const Layout& layout, int rank, TapeGroups& groups,
                 const TapeOptions& options = {});

}  // namespace trivet
