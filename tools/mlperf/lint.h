// A linter for MLPerf Training logs that covers what the official checker omits. The checker verifies each line's
// format and the values that a ruleset fixes. This linter verifies that the values in a log, and in a result's runs,
// agree with each other and with the round's rules. Its rules draw on a study of 552 logs of rounds 3.1 to 5.1.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/words.h"

namespace trivet::mlperf {

enum class Level { error, notice, cannot_know };
constexpr auto words_of(Level) { return word_list("error", "notice", "cannot know"); }

// A log line that supports a finding.
struct Evidence {
  std::string file;
  int64_t line = 0;
  std::string text;
};

struct Finding {
  Level level = Level::error;
  std::string_view rule, section;  // section: of training_rules.adoc
  std::string message;             // found and expected values
  std::vector<Evidence> lines = {};
};

// level: the most severe that the rule reports.
struct RuleText {
  std::string_view id;
  Level level;
  std::string_view section, what;
};
std::vector<RuleText> lint_rules();

struct Lint {
  int64_t files = 0;
  std::vector<Finding> findings = {};  // errors first, in the order of files and rules
  int64_t count(Level level) const;
};

// Lints each file on its own. In a directory, lints every folder that contains result_*.txt files, and also applies the
// rules about whole results. `round`: one of kRounds; "": a benchmark's last. Throws ConfigError if a path does not
// exist, or a directory contains no results.
Lint lint(const std::vector<std::string>& paths, const std::string& round);

std::string to_json(const Lint& lint);

}  // namespace trivet::mlperf
