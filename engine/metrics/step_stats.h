// StepStats: what one rank did in the window of a step, from the spans of its streams. Every nanosecond counts once:
//
//   window = compute + optimizer + exposed wire + exposed wait + host + idle
//
// A communication is on the wire from the moment it was matched (all participants had made the call), and waits for its
// peers before. Of what goes on at once, the first of this list counts: compute; optimizer; the wire of tensor,
// pipeline and data groups; waiting in tensor, pipeline and data groups; host (data loading and the like); idle. So
// wire and wait are *exposed* where the rank does not work, and what lies under work is hidden. Phase spans are names,
// not work.
//
//   wire[k]        time on the wire, hidden or not, that no class of higher priority also has
//   overlap ratio  hidden wire / wire. Waiting is no part of it: a receive that was posted early waits under compute
//                  without having anything to hide
//   bubble         (idle + exposed pipeline wait) / window: nothing to do until another stage has done its part
//
// The definitions of HTA, with waiting told apart.
#pragma once

#include <array>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/trace.h"

namespace trivet {

using ByClass = std::array<int64_t, kCommClasses.size()>;  // of kCommClasses

// Nanoseconds: exact, and added up over ranks or steps by +=, after which the fractions are those of the sum. Nothing
// but int64_t, so that an all-reduce can add them, too.
struct StepStats {
  int64_t window = 0;
  int64_t compute = 0;
  int64_t optimizer = 0;
  ByClass wire{};
  ByClass exposed_wire{};
  ByClass exposed_wait{};
  int64_t host = 0;
  int64_t idle = 0;
  ByClass bytes{};  // of the tensors communicated: a collective's once, a transfer's at both of its ends

  static int64_t sum(const ByClass& x) { return std::accumulate(x.begin(), x.end(), int64_t{0}); }
  double of_window(int64_t ns) const { return window == 0 ? 0 : static_cast<double>(ns) / static_cast<double>(window); }
  double bubble_fraction() const { return of_window(idle + exposed_wait[class_of(comm_of("pipeline"))]); }
  std::optional<double> overlap_ratio() const;          // empty where nothing was on the wire
  std::optional<double> overlap_ratio(size_t k) const;  // of the class alone

  StepStats& operator+=(const StepStats& other);
};

// Measures steps. Keeps its memory from one step to the next; used by one thread.
class StepMeter {
 public:
  // Spans are cut to the window [start_ns, end_ns). Rows may overlap each other, and spans within a row may nest.
  // Linear in the number of spans where the spans of a row are in order of their start.
  StepStats measure(std::span<const std::vector<Span>> rows, int64_t start_ns, int64_t end_ns);

 private:
  struct Interval {
    int64_t begin, end;
  };
  // What a rank can be doing, the first first.
  enum Activity {
    compute,
    optimizer,
    wire,
    wait = wire + kCommClasses.size(),
    host = wait + kCommClasses.size(),
    kActivities
  };

  void collect(std::span<const std::vector<Span>> rows, int64_t start_ns, int64_t end_ns, ByClass& bytes);

  std::array<std::vector<Interval>, kActivities> spans_;  // within the window, in order
  // Where the union of an activity's spans begins, ends, begins again, …; and at the end, never.
  std::array<std::vector<int64_t>, kActivities> changes_;
};

}  // namespace trivet
