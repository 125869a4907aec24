// BatchSizes: samples per step, as a function of the samples consumed before it. Constant, or a ramp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace trivet {

inline constexpr int64_t kMostBatchSamples = 100'000'000;  // per step

struct BatchSizes {
  struct Part {
    int64_t from = 0;     // applies to steps that begin after at least this many samples
    int64_t samples = 0;  // per step
    bool operator==(const Part&) const = default;
  };
  std::vector<Part> parts;  // ascending; the first begins at 0

  int64_t of_step(int64_t consumed) const {
    return std::prev(std::ranges::upper_bound(parts, consumed, {}, &Part::from))->samples;
  }
  int64_t largest() const { return std::ranges::max(parts, {}, &Part::samples).samples; }

  // Calls end(begin, steps, samples) for each run of steps of equal size, starting at `begin`, until end() is true.
  // The last run is unbounded.
  template <class End>
  void each_run(int64_t begin, const End& end) const {
    for (size_t i = 0; i < parts.size(); ++i) {
      const bool last = i + 1 == parts.size();
      if (!last && begin >= parts[i + 1].from) continue;
      const int64_t samples = parts[i].samples;
      const int64_t steps =
          last ? std::numeric_limits<int64_t>::max() : (parts[i + 1].from - begin + samples - 1) / samples;
      if (end(begin, steps, samples)) return;
      begin += steps * samples;
    }
  }
  // The number of whole steps, from the start of the run, that together consume at most `samples`.
  int64_t steps_within(int64_t samples) const {
    int64_t count = 0;
    each_run(0, [&](int64_t begin, int64_t steps, int64_t size) {
      const int64_t fit = begin > samples ? 0 : std::min(steps, (samples - begin) / size);
      count += fit;
      return fit < steps;
    });
    return count;
  }
  int64_t samples_of(int64_t steps_from_the_beginning) const {
    int64_t left = steps_from_the_beginning, samples = 0;
    each_run(0, [&](int64_t begin, int64_t steps, int64_t size) {
      const int64_t taken = std::min(steps, left);
      samples = begin + taken * size;
      return (left -= taken) == 0;
    });
    return samples;
  }
};

// Megatron's rampup_batch_size: `start` to `full` by `increment`, evenly spread over the first `samples`.
BatchSizes ramp_of_batch_sizes(int64_t start, int64_t increment, int64_t samples, int64_t full);
// Megatron's step_batch_size_schedule, "0:768 250B:1536": token thresholds with the batch size from each threshold on.
// K, M, B, T: 10^3, … 10^12. Empty if the text is invalid: the first threshold must be 0, and thresholds must ascend.
std::optional<BatchSizes> parse_batch_size_schedule(const std::string& text, int64_t seq_length);

}  // namespace trivet
