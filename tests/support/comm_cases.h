// What every Communicator must do, whatever moves the data. A case is the code that one rank of a world runs; a test
// program runs all cases for its back end and its world sizes.
//
// Each rank computes all expected values itself, from numbers that are a function of (rank, index). So no second
// communicator is needed to check the first, and back ends that pass agree bit for bit.
#pragma once

#include <vector>

#include "parallel/comm/comm.h"

namespace trivet {

struct CommCase {
  const char* name;
  void (*body)(Communicator& world);
};

// In the order in which every rank runs the cases.
std::vector<CommCase> collective_cases();  // comm_collective_cases.cc
std::vector<CommCase> group_cases();       // comm_group_cases.cc: transfers, streams, split, mesh
std::vector<CommCase> trace_cases();       // comm_trace_cases.cc

// No call of the group is on the wire for less than its floor, whichever rank arrives late. `emulated`: `link` is
// emulated, so the ranks agree to the nanosecond, and a transfer takes exactly its floor. `seconds`: time a call takes.
void spans_keep_to_their_floors(Communicator& group, const Link& link, bool emulated, double seconds);

inline std::vector<CommCase> comm_cases() {
  std::vector<CommCase> cases = collective_cases();
  for (const auto& more : {group_cases(), trace_cases()}) cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

}  // namespace trivet
