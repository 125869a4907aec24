// Options that several commands have, and checks of the numbers that options take, in the words of the configuration's:
// CLI11's own let NaN pass, and print the largest double where there is no upper bound.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <fmt/format.h>
#include <limits>
#include <string>
#include <system_error>

#include "engine/config/scalar.h"
#include "engine/config/validate.h"

namespace trivet {

inline CLI::Validator whole_number(int64_t low, int64_t high = std::numeric_limits<int64_t>::max()) {
  const auto check = [=](std::string& text) -> std::string {
    int64_t value = 0;  // in decimal digits: CLI11 would take 010 for eight
    const char* const last = text.data() + text.size();
    const auto end = std::from_chars(text.data(), last, value);
    const bool octal = text.size() > 1 && text[0] == '0';
    if (octal || end.ec != std::errc() || end.ptr != last || value < low || value > high)
      return fmt::format("found {}, expected an integer {}", quote(text),
                         high == std::numeric_limits<int64_t>::max() ? fmt::format("of at least {}", low)
                                                                     : fmt::format("from {} to {}", low, high));
    return {};
  };
  return {check, ""};
}

inline CLI::Validator file_name() {
  return {[](std::string& text) { return text.empty() ? "is empty, expected the name of a file" : ""; }, ""};
}

inline CLI::Validator at_least_zero() {
  const auto check = [](std::string& text) -> std::string {
    const auto value = parse_number(text);
    if (value && *value >= 0) return {};
    return fmt::format("found {}, expected a number of at least 0", quote(text));
  };
  return {check, ""};
}

// Above 0, at most 1.
inline CLI::Validator share() {
  const auto check = [](std::string& text) -> std::string {
    const auto value = parse_number(text);
    if (value && *value > 0 && *value <= 1) return {};
    return fmt::format("found {}, expected a number above 0, at most 1", quote(text));
  };
  return {check, ""};
}

// --set and --ranks, which several commands have.
inline void add_set_option(CLI::App& command, std::vector<std::string>& sets, const char* help) {
  command.add_option("--set", sets, help)->option_text("SECTION.KEY=VALUE ...")->take_all()->allow_extra_args(false);
}
inline void add_ranks_option(CLI::App& command, int& ranks, const char* help) {
  command.add_option("--ranks", ranks, help)->option_text("N")->check(whole_number(1, kMostRanks));
}

}  // namespace trivet
