#include "engine/metrics/walltime.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/metrics/jsonl.h"

namespace trivet {
namespace {

constexpr size_t kMostSteps = 1000;  // older steps are dropped

}  // namespace

WallTime::WallTime(const Config& config, Tell tell)
    : tell_(std::move(tell)),
      total_(config.train.train_iters),
      evaluations_{.interval = config.train.eval_interval},
      saves_{.interval = config.checkpoint.save_interval} {}

void WallTime::record(const nlohmann::ordered_json& record) {
  const auto number = [&](const char* key) { return std::fmax(0, number_in(record, key)); };
  const std::string event = text_in(record, "event");
  if (event == "start" || event == "resume") {
    done_ = static_cast<int64_t>(number("step"));
    start_seconds_ = number("start_seconds");
    first_ = true;
  } else if (event == "eval" || event == "checkpoint") {
    Kind& kind = event == "eval" ? evaluations_ : saves_;
    ++kind.count, kind.sum += number(event == "eval" ? "seconds" : "stall_seconds");
    kind.longest = std::max(kind.longest, number("seconds"));
  } else if (!record.contains("event")) {
    done_ = static_cast<int64_t>(number("step"));
    if (std::exchange(first_, false)) return void(start_seconds_ += number("step_seconds"));
    if (steps_.size() == kMostSteps) steps_.erase(steps_.begin());
    steps_.push_back(number("step_seconds"));
    ++counted_;
  }
  tell_news();
}

void WallTime::read(const std::string& path) {
  const auto hear = [this](const nlohmann::ordered_json& line) { record(line); };
  for_each_step(path, hear, hear);
}

WallTimeReport WallTime::report() const {
  std::vector<double> sorted = steps_;
  std::ranges::sort(sorted);
  const double step = sorted[(sorted.size() * 95 + 99) / 100 - 1];  // 95 % of the steps take no longer
  double seconds = start_seconds_ + static_cast<double>(total_ - done_) * step + saves_.longest;
  std::string parts;
  for (const auto& [kind, name] : {std::pair{&evaluations_, "evaluation"}, {&saves_, "save"}}) {
    const int64_t left = kind->interval == 0 ? 0 : total_ / kind->interval - done_ / kind->interval;
    const double mean = kind->count == 0 ? 0 : kind->sum / static_cast<double>(kind->count);
    seconds += static_cast<double>(left) * mean;
    if (left > 0)
      parts += fmt::format(", {} of {}", counted(left, name),
                           kind->count > 0 ? fmt::format("{:.3g} s", mean) : "unknown length: none has been made yet");
  }
  const double lead = std::ceil(1.5 * (sorted.back() + saves_.longest));
  return {.seconds = seconds,
          .lead_seconds = lead,
          .text = fmt::format("{} left: a job for them needs a walltime of {} (95 % of the steps take {:.3g} s or "
                              "less{}, start {:.3g} s) and a signal to save {:.0f} s before its end",
                              counted(total_ - done_, "step"), duration_text(std::ceil(seconds)), step, parts,
                              start_seconds_, lead)};
}

void WallTime::tell_news() {
  const int kinds = (evaluations_.count > 0) + (saves_.count > 0);
  if (!tell_ || !known() || (kinds <= told_kinds_ && counted_ < 10 * told_steps_) || counted_ == told_steps_) return;
  told_kinds_ = kinds, told_steps_ = counted_;
  tell_(report());
}

}  // namespace trivet
