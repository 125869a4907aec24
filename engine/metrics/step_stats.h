// StepStats: one rank's time in the window of a step, from the spans of its streams. Every nanosecond counts once:
//
//   window = compute + optimizer + exposed + wait + host + idle
//
// The transport reports when a communication is on the wire (trace.h); before that it waits for its peers, and
// afterwards it copies, which is host work. Of concurrent activities, the first in this list counts: compute;
// optimizer; the wire of tensor, pipeline and data groups; waiting in tensor, pipeline and data groups; host (copies,
// data loading); idle. So *exposed* is wire time in which the rank computes nothing; a wait is never exposed, and is
// reported separately. Phase spans are labels, not work.
//
//   wire[k]        time on the wire, exposed or not, of one class alone: the union of its calls
//   floor[k]       wire[k] if each call took bytes / bandwidth + latency of its link, starting when
//                  its first byte could move, with collectives serialised
//   overlap ratio  hidden wire / wire. Waiting does not count: a receive that was posted early waits under compute
//                  without anything to hide
//   bubble         (idle + pipeline wait) / window: nothing to do until another stage has done its part
//
// These are HTA's definitions, except that waiting is separate.
#pragma once

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/trace.h"
#include "parallel/comm/link.h"

namespace trivet {

using ByClass = std::array<int64_t, kCommClasses.size()>;  // in the order of kCommClasses

// The link that each class uses, if known.
using KnownLinks = std::array<std::optional<Link>, kCommClasses.size()>;

// Exact nanoseconds. += accumulates ranks or steps; the fractions then refer to the sum. All members are int64_t, so
// that an all-reduce can sum them, too.
struct StepStats {
  int64_t window = 0;
  int64_t compute = 0;
  int64_t optimizer = 0;
  ByClass exposed{};
  ByClass wait{};
  int64_t host = 0;
  int64_t idle = 0;
  ByClass wire{};
  ByClass hidden{};      // wire time under compute or optimizer
  ByClass floor{};       // 0 if the link is not known
  ByClass wire_bytes{};  // WireCost::bytes of the calls
  int64_t any_wire = 0;  // the union over classes

  static int64_t sum(const ByClass& x) { return std::accumulate(x.begin(), x.end(), int64_t{0}); }
  // NaN if nothing was measured.
  double of_window(int64_t ns) const { return static_cast<double>(ns) / static_cast<double>(window); }
  double bubble_fraction() const { return of_window(idle + wait[class_of(comm_of("pipeline"))]); }
  std::optional<double> overlap_ratio() const;          // empty if nothing was on the wire
  std::optional<double> overlap_ratio(size_t k) const;  // of class k alone

  StepStats& operator+=(const StepStats& other);
};

// Measures steps. Reuses its memory from step to step; used by one thread.
class StepMeter {
 public:
  // between_windows: the rows contain each call once, and the bytes of calls that run between two windows, such as
  // weight gathers, count too. Otherwise only the bytes of calls in the window count.
  explicit StepMeter(const KnownLinks& links = {}, bool between_windows = false)
      : links_(links), between_windows_(between_windows) {}

  // Spans are clipped to the window [start_ns, end_ns). Rows may overlap each other, and spans within a row may nest.
  // Linear in the number of spans if the spans of each row are sorted by start.
  StepStats measure(std::span<const std::vector<Span>> rows, int64_t start_ns, int64_t end_ns);

 private:
  // The activities of a rank, in order of precedence.
  enum Activity {
    compute,
    optimizer,
    wire,
    wait = wire + kCommClasses.size(),
    host = wait + kCommClasses.size(),
    kActivities
  };
  // A call as the floor models it: its earliest start on the wire, and its duration there.
  struct FloorCall {
    int64_t start;
    WireTime time;
    bool queues;
  };

  void collect(std::span<const std::vector<Span>> rows, int64_t start_ns, int64_t end_ns, StepStats& stats);
  void collect_call(const Span& span, int64_t start_ns, int64_t end_ns, StepStats& stats);
  void add(size_t activity, int64_t begin, int64_t end, int64_t start_ns, int64_t end_ns) {
    const Interval x = Interval{begin, end}.cut_to({start_ns, end_ns});
    if (x.begin < x.end) spans_[activity].push_back(x);
  }
  int64_t floor_of(std::vector<FloorCall>& calls, int64_t start_ns, int64_t end_ns) const;

  const KnownLinks links_;
  const bool between_windows_;
  std::array<std::vector<FloorCall>, kCommClasses.size()> floors_;
  std::array<std::vector<Interval>, kActivities> spans_;  // within the window, in order
  // Times when the union of an activity's spans begins, ends, begins again, …; the last entry is kNever.
  std::array<std::vector<int64_t>, kActivities> changes_;
};

}  // namespace trivet
