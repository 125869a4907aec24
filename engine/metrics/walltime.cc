#include "engine/metrics/walltime.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/metrics/jsonl.h"

namespace trivet {
namespace {

constexpr size_t kMostSteps = 1000;  // of which it goes by the last

}  // namespace

WallTime::WallTime(const Config& config, Tell tell)
    : tell_(std::move(tell)),
      total_(config.train.train_iters),
      evaluations_{.interval = config.train.eval_interval},
      saves_{.interval = config.checkpoint.save_interval} {}

void WallTime::Kind::add(double stall, double seconds) {
  ++count, sum += stall;
  longest = std::max(longest, seconds);
}

std::string WallTime::begin(const RunBegin& run) {
  done_ = run.step;
  start_seconds_ = run.start_seconds;
  first_ = true;
  return {};
}

void WallTime::step(const StepReport& r) {
  done_ = r.step;
  if (std::exchange(first_, false)) return void(start_seconds_ += r.step_seconds);
  if (steps_.size() == kMostSteps) steps_.erase(steps_.begin());
  steps_.push_back(r.step_seconds);
  ++counted_;
  tell_news();
}

void WallTime::evaluation(const EvalReport& r) {
  evaluations_.add(r.seconds, r.seconds);
  tell_news();
}

void WallTime::save(const SaveReport& r) {
  saves_.add(r.stall_seconds, r.seconds);
  tell_news();
}

void WallTime::read(const std::string& path) {
  for_each_record(path, [&](const nlohmann::ordered_json& record) {
    const auto number = [&](const char* name) {
      const auto found = record.find(name);
      return found != record.end() && found->is_number() ? found->get<double>() : 0;
    };
    const auto kind = record.find("event");
    const std::string event = kind == record.end() ? "" : kind->is_string() ? kind->get<std::string>() : "?";
    const auto step_number = static_cast<int64_t>(number("step"));
    if (event == "start" || event == "resume") begin({.step = step_number, .start_seconds = number("start_seconds")});
    else if (event == "eval") evaluation({.step = step_number, .seconds = number("seconds")});
    else if (event == "checkpoint")
      save({.step = step_number, .stall_seconds = number("stall_seconds"), .seconds = number("seconds")});
    else if (event.empty()) {
      StepReport report;
      report.step = step_number, report.step_seconds = number("step_seconds");
      step(report);
    }
  });
}

double WallTime::step_seconds() const {
  std::vector<double> sorted = steps_;
  const auto at = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() * 95 + 99) / 100 - 1);
  std::ranges::nth_element(sorted, at);
  return *at;
}

double WallTime::seconds() const {
  return start_seconds_ + static_cast<double>(total_ - done_) * step_seconds() +
         static_cast<double>(evaluations_.left(done_, total_)) * evaluations_.mean() +
         static_cast<double>(saves_.left(done_, total_)) * saves_.mean() + saves_.longest;
}

double WallTime::lead_seconds() const { return std::ceil(1.5 * (*std::ranges::max_element(steps_) + saves_.longest)); }

WallTimeReport WallTime::report() const {
  const auto part = [&](const Kind& kind, const char* name) {
    const int64_t left = kind.left(done_, total_);
    if (left == 0) return std::string();
    return fmt::format(", {} of {}", counted(left, name),
                       kind.count > 0 ? fmt::format("{:.3g} s", kind.mean()) : "unknown length: none was made yet");
  };
  const std::string text = fmt::format(
      "{} left: a job for them needs a walltime of {} (95 % of the steps take {:.3g} s or less{}{}, start {:.3g} s) "
      "and a signal to save {:.0f} s before its end",
      counted(total_ - done_, "step"), duration_text(std::ceil(seconds())), step_seconds(),
      part(evaluations_, "evaluation"), part(saves_, "save"), start_seconds_, lead_seconds());
  return {.seconds = seconds(), .lead_seconds = lead_seconds(), .text = text};
}

void WallTime::tell_news() {
  const int kinds = (evaluations_.count > 0) + (saves_.count > 0);
  if (!tell_ || !known() || (kinds <= told_kinds_ && counted_ < 10 * told_steps_) || counted_ == told_steps_) return;
  told_kinds_ = kinds, told_steps_ = counted_;
  tell_(report());
}

}  // namespace trivet
