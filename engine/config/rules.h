// Rules: constraints between the values of a configuration. Each is a row: the key at fault, the other keys that it
// reads, the condition that breaks it, and a message (what was found, why it is invalid, a remedy). Each row is written
// once and checked where the facts it needs are known: the values alone (load_config), the ranks and the dataset, the
// layout (resolve), or the devices (make_backend). So `trivet config`, `train`, `generate` and `study` reject a
// configuration with the same messages; `config`, which also plans for other machines, skips the device rules.
//
// A value that cannot have an effect breaks a rule. In two cases the file is not at fault, and the value is left out
// with a note: a --set removed what it needs (`--set checkpoint.save_interval=0` for a file with keep_last), or there
// are too few ranks (`--ranks 1` with a file for eight).
#pragma once

#include <fmt/format.h>
#include <span>
#include <string_view>
#include <vector>

#include "engine/config/problems.h"
#include "engine/config/validate.h"

namespace trivet {

class Rules {
 public:
  explicit Rules(Problems& problems) : problems_(problems) {}

  // Reports nothing if one of the keys already has a problem, which may be the cause. Conditions are evaluated
  // regardless, so they must tolerate out-of-range values.
  template <class... Args>
  void operator()(std::string_view key, const std::vector<std::string_view>& with, bool broken,
                  fmt::format_string<const Args&...> text, const Args&... args) {
    if (broken && is_due(key, with)) problems_.add(key, fmt::format(text, args...));
  }

  // A rule for a value that has no effect because of the values of the keys in `of`.
  template <class... Args>
  void no_effect(std::string_view key, const std::vector<std::string_view>& of, bool broken,
                 fmt::format_string<const Args&...> text, const Args&... args) {
    if (!broken || !is_due(key, of)) return;
    if (problems_.overridden(key, of)) problems_.leave_out(key, fmt::format(text, args...));
    else problems_.add(key, fmt::format(text, args...));
  }

  // A rule for a value that has no effect because there are too few ranks.
  template <class... Args>
  void few_ranks(std::string_view key, bool broken, fmt::format_string<const Args&...> text, const Args&... args) {
    if (broken && is_due(key, {})) problems_.leave_out(key, fmt::format(text, args...));
  }

 private:
  bool is_due(std::string_view key, const std::vector<std::string_view>& with) const {
    return problems_.clean({key}) && problems_.clean(with) && !problems_.left_out(key);
  }

  Problems& problems_;
};

void check_rules_of_values(const Config& config, Problems& problems);
void check_needs(const Config& config, Rules& rule);                 // part of the above: Field::needs
void check_schedules_over_steps(const Config& config, Rules& rule);  // another part, in its own file
void check_rules_of_ranks(const LoadedConfig& loaded, const RunFacts& facts, Problems& problems);
void check_rules_of_layout(const Config& config, const Layout& layout, Problems& problems);

// True if the ranks compute on GPUs. host_gpus: the usable GPUs of each rank's host. Throws a ConfigError that
// lists the violated rules for devices.
bool on_gpus(const Config& config, std::span<const int64_t> host_gpus);

// True if parallel.pipeline_schedule is a path, not a kind.
inline bool is_file_of_schedule(std::string_view name) { return name.find_first_of("./") != std::string_view::npos; }

// The key that makes the batch size change.
inline std::string_view ramp_key(const Config& c) {
  return !c.batch.rampup_batch_size ? "batch.step_batch_size_schedule" : "batch.rampup_batch_size";
}

// The length of the warm-up, in steps or samples.
inline int64_t warmup_of_fraction(double fraction, int64_t decay) {
  return static_cast<int64_t>(fraction * static_cast<double>(decay));
}

// Up to six divisors of n, those nearest to `near`: "1, 2 or 4"
std::string divisors(int64_t n, int64_t near);
// True if `whole` is a multiple of `part`; false if `part` is not a valid size.
constexpr bool divides(int64_t part, int64_t whole) { return part > 0 && whole % part == 0; }

}  // namespace trivet
