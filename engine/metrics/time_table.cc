#include "engine/metrics/time_table.h"

#include <cmath>
#include <fmt/format.h>

namespace trivet {

void TimeTable::add(const StepStats& of_all_ranks) {
  ++steps_;
  if (steps_ == warm_up_steps_ + 1) counted_ = 0, sum_ = {};
  ++counted_;
  sum_ += of_all_ranks;
}

std::vector<TextBlock> TimeTable::describe() const {
  if (counted_ == 0) return {};
  const double rank_steps = static_cast<double>(counted_) * ranks_;
  const auto ms = [&](int64_t ns) { return fmt::format("{:.2f}", static_cast<double>(ns) * 1e-6 / rank_steps); };
  const auto bytes = [&](int64_t n) { return bytes_text(std::llround(static_cast<double>(n) / rank_steps)); };

  TextBlock time = {fmt::format("time of a step, the mean of {} {} and {} {}", counted_,
                                counted_ == 1 ? "step" : "steps", ranks_, ranks_ == 1 ? "rank" : "ranks"),
                    {{"", "ms", "share"}},
                    "lrr"};
  const auto row = [&](const char* name, int64_t ns) {
    time.rows.push_back({name, ms(ns), percent_text(sum_.of_window(ns))});
  };
  row("compute", sum_.compute);
  row("optimizer", sum_.optimizer);
  row("exposed wire", StepStats::sum(sum_.exposed_wire));
  row("exposed wait", StepStats::sum(sum_.exposed_wait));
  row("host", sum_.host);
  row("idle", sum_.idle);
  row("step", sum_.window);

  TextBlock comm = {"communication of a step",
                    {{"", "bytes", "wire ms", "hidden ms", "exposed ms", "wait ms", "overlap"}},
                    "lrrrrrr"};
  for (size_t k = 0; k < kCommClasses; ++k) {
    if (sum_.bytes[k] == 0) continue;
    const auto overlap = sum_.overlap_ratio(static_cast<CommClass>(k));
    comm.rows.push_back({name_of(static_cast<CommClass>(k)), bytes(sum_.bytes[k]), ms(sum_.wire[k]),
                         ms(sum_.wire[k] - sum_.exposed_wire[k]), ms(sum_.exposed_wire[k]), ms(sum_.exposed_wait[k]),
                         percent_text(overlap.value_or(std::nan("")))});
  }
  if (comm.rows.size() == 1) return {time};
  return {time, comm};
}

}  // namespace trivet
