// For message tests: EXPECT_TRUE(says(text, {"part", "part"})) shows the text if a part is missing.
#pragma once

#include <gtest/gtest.h>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace trivet {

inline ::testing::AssertionResult says(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (std::string_view part : parts)
    if (text.find(part) == std::string::npos)
      return ::testing::AssertionFailure() << "no '" << part << "' in: " << (text.empty() ? "(nothing)" : text);
  return ::testing::AssertionSuccess();
}

// At least one line contains all the parts.
inline ::testing::AssertionResult says(const std::vector<std::string>& lines,
                                       std::initializer_list<std::string_view> parts) {
  std::string all;
  for (const std::string& line : lines) {
    if (says(line, parts)) return ::testing::AssertionSuccess();
    all += "\n  " + line;
  }
  return ::testing::AssertionFailure() << "no line with '" << *parts.begin() << "' in:" << all;
}

// The message of the ConfigError that `run` throws; empty if it throws none.
template <class Run>
std::string config_error_of(Run&& run) {
  try {
    run();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace trivet
