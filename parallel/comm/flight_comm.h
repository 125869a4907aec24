// A flight recorder under a communicator: every call of the result, and of the groups split off it, is written down.
// The data, the errors and the spans are those of the communicator below.
//
// For CPU streams: what is recorded is when the call runs on its stream.
#pragma once

#include <memory>

#include "parallel/comm/comm.h"
#include "parallel/comm/flight_recorder.h"

namespace trivet {

// For tests of what happens when a rank does not do as the others: asked before each collective of a group of several
// ranks, on the thread that calls it.
enum class CallFault { none, skip, extra, wrong_size, wrong_type };
class CallFaults {
 public:
  virtual ~CallFaults() = default;
  virtual CallFault next_call() = 0;
};

// `world`, `recorder` and `faults` (null: none) outlive the result. Collective over `world`: so is split(), which tells
// the ranks of the new group who is in it.
std::unique_ptr<Communicator> with_flight_recorder(Communicator& world, FlightRecorder& recorder,
                                                   CallFaults* faults = nullptr);

}  // namespace trivet
