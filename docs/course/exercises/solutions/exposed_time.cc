#include "docs/course/exercises/exposed_time.h"

#include <algorithm>

namespace trivet::exercise {

double exposed_time(std::vector<Span> communication, std::vector<Span> computation) {
  struct Change {
    double at;
    int transfers, computations;  // the number that begin here; negative: that end
  };
  std::vector<Change> changes;
  for (const Span& span : communication) changes.insert(changes.end(), {{span.begin, 1, 0}, {span.end, -1, 0}});
  for (const Span& span : computation) changes.insert(changes.end(), {{span.begin, 0, 1}, {span.end, 0, -1}});
  std::ranges::sort(changes, {}, &Change::at);
  double exposed = 0, before = 0;
  int transfers = 0, computations = 0;
  for (const Change& change : changes) {
    if (transfers > 0 && computations == 0) exposed += change.at - before;
    before = change.at;
    transfers += change.transfers;
    computations += change.computations;
  }
  return exposed;
}

}  // namespace trivet::exercise
