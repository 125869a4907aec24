// ClockOffsets: by how much the clock of this rank's host differs from rank 0's.
//
//   1. Ranks with the same clock number share a clock. On each clock but rank 0's, the first rank asks rank 0 several
//      times for its time. In the exchange with the shortest round trip, offset = rank 0's time - the midpoint between
//      question and answer, which is wrong by half the round trip at most (D. L. Mills, RFC 5905).
//   2. That rank passes the offset on to the other ranks with its clock.
//   3. Between two measurements the offset is interpolated: clocks drift apart by microseconds per second.
#pragma once

#include <cstdint>
#include <functional>
#include <set>

#include "base/host.h"
#include "kernels/base/trace.h"
#include "parallel/comm/host_world.h"

namespace trivet {

class ClockOffsets {
 public:
  // Collective; makes the first measurement. `ranks` must outlive this.
  explicit ClockOffsets(HostWorld& ranks, int64_t clock_number = trivet::clock_number(),
                        std::function<int64_t()> now = now_ns);

  void measure();  // collective
  bool one_clock() const { return leaders_.size() == 1; }
  // The offset that converts `ns` from this rank's clock to rank 0's: interpolated between the last two
  // measurements; outside that interval, the offset of the nearer measurement.
  int64_t offset(int64_t ns) const;
  int64_t round_trip() const { return last_.round_trip; }

 private:
  struct Measurement {
    int64_t at = 0, offset = 0, round_trip = 0;  // at: by this rank's clock
  };
  HostWorld& ranks_;
  std::function<int64_t()> now_;
  std::set<int> leaders_;  // the first rank of each clock
  int leader_ = 0;         // the first rank of this rank's clock
  Measurement before_, last_;
};

}  // namespace trivet
