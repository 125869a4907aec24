// Scalars: a number or truth value from the text of a configuration. Each function is empty where the text is not,
// wholly and exactly, such a value.
//
//   integers   40_000_000, 1e9, 1.5e6; not 1.5, 010 (octal to some YAML readers), 0x10
//   numbers    3e-4, .5, 1_000.25; not nan, inf, or what a double cannot hold
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace trivet {

std::optional<int64_t> parse_integer(std::string_view text);
std::optional<double> parse_number(std::string_view text);
std::optional<bool> parse_truth(std::string_view text);

}  // namespace trivet
