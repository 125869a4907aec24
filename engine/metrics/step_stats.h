// StepStats: what one rank did in the window of a step, from the spans of its streams.
//
// With W the window and |X| the length of the union of the spans X within it:
//   C    compute and optimizer spans: the rank works          compute = |C|, of which optimizer = |O|
//   N_k  communication of class k, without the time in which a class of higher priority also communicates
//        (tensor > pipeline > data), so the classes add up     comm[k] = |N_k|
//   exposed[k] = |N_k \ C|: communication that nothing hid     idle = W - |C u N|
//   overlap ratio = |C ∩ N| / |N|
// so W = compute + sum of exposed + idle, exactly. Phase spans are names, not work, and are not counted; host spans
// (data loading) are the part of idle that they explain.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/trace.h"

namespace trivet {

enum class CommClass : uint8_t { tensor, pipeline, data };
constexpr size_t kCommClasses = 3;

// Nanoseconds: exact, and added up over ranks or steps by +=, after which the fractions are those of the sum.
struct StepStats {
  int64_t window = 0;
  int64_t compute = 0;
  int64_t optimizer = 0;
  std::array<int64_t, kCommClasses> comm{};     // by CommClass
  std::array<int64_t, kCommClasses> exposed{};  // by CommClass
  int64_t idle = 0;
  int64_t host = 0;

  int64_t total_comm() const { return comm[0] + comm[1] + comm[2]; }
  int64_t total_exposed() const { return exposed[0] + exposed[1] + exposed[2]; }
  double exposed_fraction() const { return of_window(total_exposed()); }
  double exposed_fraction(CommClass k) const { return of_window(exposed[static_cast<size_t>(k)]); }
  // The pipeline's bubble: nothing to compute, and nothing to send or receive but other stages' results.
  double bubble_fraction() const { return of_window(idle + exposed[static_cast<size_t>(CommClass::pipeline)]); }
  // Empty without communication.
  std::optional<double> overlap_ratio() const;

  StepStats& operator+=(const StepStats& other);

 private:
  double of_window(int64_t ns) const { return window == 0 ? 0 : static_cast<double>(ns) / static_cast<double>(window); }
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
  static constexpr size_t kCategories = static_cast<size_t>(Category::phase);  // those that are counted

  void collect(std::span<const std::vector<Span>> rows, int64_t start_ns, int64_t end_ns);

  std::array<std::vector<Interval>, kCategories> spans_;  // by category, within the window, in order
  // By category: where its union begins, ends, begins again, …; and at the end, never.
  std::array<std::vector<int64_t>, kCategories> changes_;
};

}  // namespace trivet
