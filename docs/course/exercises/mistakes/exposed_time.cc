// The mistake: subtracts the overlap of each pair. Where two kernels run at the same time, hidden time is counted
// twice.
#include "docs/course/exercises/exposed_time.h"

#include <algorithm>

namespace trivet::exercise {

double exposed_time(std::vector<Span> communication, std::vector<Span> computation) {
  double exposed = 0;
  for (const Span& transfer : communication) {
    exposed += transfer.end - transfer.begin;
    for (const Span& kernel : computation)
      exposed -= std::max(0.0, std::min(transfer.end, kernel.end) - std::max(transfer.begin, kernel.begin));
  }
  return exposed;
}

}  // namespace trivet::exercise
