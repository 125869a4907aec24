// The inputs of the linter's rules (a log with its benchmark; a result's runs), and the reports that rules write.
#pragma once

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/mlperf/lint.h"
#include "tools/mlperf/log.h"
#include "tools/mlperf/rules.h"

namespace trivet::mlperf {

struct Evaluation {
  double position = 0;  // sequences
  double value = 0;     // log-perplexity
  const Record* record = nullptr;
};

struct Run {
  Log log;
  std::string_view round = {};               // as requested, or the benchmark's last
  const Benchmark* benchmark = nullptr;      // null: unknown to the linter
  int64_t batch = 0;                         // global_batch_size; 0: missing or invalid
  std::optional<int64_t> accelerators = {};  // in the system; empty: its description file is missing
  std::vector<Evaluation> evaluations = {};  // those with a position, without consecutive duplicates
  std::string status = {};                   // from the last run_stop

  const Evaluation* reached() const;  // the first evaluation on target; null: none
  Evidence at(const Record* record) const;
  Evidence at(std::string_view key) const { return at(log.first(key)); }
};

// The runs in a folder, or the run in one file.
struct Result {
  std::string folder;
  bool whole = false;  // true for a folder, whose runs are all present
  std::vector<Run> runs = {};
};

// Collects the findings of one rule.
class Report {
 public:
  Report(const RuleText& rule, std::vector<Finding>& findings) : rule_(rule), findings_(findings) {}
  // Missing lines (line 0) and consecutive duplicates are left out.
  template <class... Args>
  void operator()(Level level, std::vector<Evidence> lines, fmt::format_string<Args...> text, Args&&... args) const {
    std::erase_if(lines, [](const Evidence& evidence) { return evidence.line == 0; });
    const auto same = [](const Evidence& a, const Evidence& b) { return a.line == b.line && a.file == b.file; };
    lines.erase(std::unique(lines.begin(), lines.end(), same), lines.end());
    findings_.push_back(
        {level, rule_.id, rule_.section, fmt::format(text, std::forward<Args>(args)...), std::move(lines)});
  }

 private:
  const RuleText& rule_;
  std::vector<Finding>& findings_;
};

enum class Scope { any, known, closed };  // runs of known benchmarks and batch sizes; of the closed division alone

struct RunRule {
  void (*check)(const Run& run, const Report& report);
  Scope scope;
  RuleText text;
};
const std::vector<RunRule>& run_rules();

}  // namespace trivet::mlperf
