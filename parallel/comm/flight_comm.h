// A flight recorder under a communicator: every call of the result, and of the groups split off it, is written down.
// The data, the errors and the spans are those of the communicator below.
//
// On CPU streams what is recorded is when the call runs there.
#pragma once

#include <memory>

#include "kernels/base/device.h"
#include "parallel/comm/call_faults.h"
#include "parallel/comm/comm.h"
#include "parallel/comm/flight_recorder.h"

namespace trivet {

// `world`, `recorder` and `faults` (null: none) outlive the result. Collective over `world`: so is split(), which tells
// the ranks of the new group who is in it.
std::unique_ptr<Communicator> with_flight_recorder(Communicator& world, FlightRecorder& recorder,
                                                   CallFaults* faults = nullptr);

// The same for `exchange`, which moves the memory of `device` on the device's own streams (NCCL). These are not stopped
// for it: a call lies between two events, and the recorder looks at them when it is asked. `host`: the same ranks in
// host memory; it, `device`, `recorder` and `faults` outlive the result. Collective, and so is split().
std::unique_ptr<Communicator> with_flight_recorder(std::unique_ptr<Communicator> exchange, Device& device,
                                                   Communicator& host, FlightRecorder& recorder,
                                                   CallFaults* faults = nullptr);

}  // namespace trivet
