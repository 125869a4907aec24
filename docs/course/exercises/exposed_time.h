// exposed_time: chapter 11, 30 minutes
//
// Communication is exposed while some of it is on the wire and the rank computes nothing: more overlap could still hide
// that time. A trace has the intervals of all transfers and of all kernels of a rank. Transfers overlap each other, and
// so do kernels, because there are several streams. How long is communication exposed?
#pragma once

#include <vector>

namespace trivet::exercise {

struct Span {
  double begin, end;
};

double exposed_time(std::vector<Span> communication, std::vector<Span> computation);

}  // namespace trivet::exercise

// Hints
//   1. Merge each of the two lists first: sort by start, and join what touches. Then no instant is counted twice.
//   2. exposed = communication - its overlap with computation. The overlap is a sum over pairs of merged spans.
//   3. Or sweep: sort all starts and ends, count what is active, and add up the time with transfers and no kernel.
// In the engine: engine/metrics/step_stats.h, the column "exposed" of the log.
