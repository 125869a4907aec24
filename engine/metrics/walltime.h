// WallTime: the walltime that a job needs for the rest of a run, from its measurements so far: the 95th percentile of
// its step times, the mean evaluation and save times, the longest save, and the last start. Reported after kSteps
// steps, each time the count has grown tenfold, and when the first evaluation and the first save have been measured.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/metrics/observer.h"

namespace trivet {

class WallTime : public RunObserver {
 public:
  static constexpr size_t kSteps = 20;

  using Tell = std::function<void(const WallTimeReport& report)>;
  explicit WallTime(const Config& config, Tell tell = nullptr);  // `tell` may be null

  void record(const nlohmann::ordered_json& record) override;
  void read(const std::string& path);  // reads a metrics.jsonl, as if it had observed that run

  bool known() const { return steps_.size() >= kSteps && done_ < total_; }  // report() REQUIRES it
  WallTimeReport report() const;

 private:
  struct Kind {
    int64_t interval = 0;  // steps; 0: never
    int64_t count = 0;
    double sum = 0, longest = 0;  // sum: seconds that training stalled; longest: seconds from start to end
  };
  void tell_news();

  Tell tell_;
  const int64_t total_;
  int64_t done_ = 0;
  double start_seconds_ = 0;
  bool first_ = true;          // the next step is the process's first
  std::vector<double> steps_;  // seconds
  Kind evaluations_, saves_;
  int64_t counted_ = 0;  // steps seen, including those dropped from steps_
  int64_t told_steps_ = 0;
  int told_kinds_ = 0;  // kinds measured at the last report
};

}  // namespace trivet
