// Scalars as written in configurations: parsing their values and quoting strings in messages. Functions that return an
// optional return an empty one unless the whole text is a valid value.
//
//   integers   40_000_000, 1e9, 1.5e6; not 1.5, 010 (octal to some YAML readers), 0x10
//   numbers    3e-4, .5, 1_000.25; not nan, inf, or numbers beyond a double's range
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trivet {

// A scalar as written. `quoted`: YAML text in quotes, which is never a number, a boolean or "auto". `null`: ~ or
// null, or, with `missing`, nothing at all.
struct Scalar {
  std::string text = {};
  bool quoted = false;
  bool null = false;
  bool missing = false;
};

std::optional<int64_t> parse_integer(std::string_view text);
std::optional<double> parse_number(std::string_view text);
std::optional<bool> parse_truth(std::string_view text);
// The parts of the text between commas, without the spaces around them; at least one, possibly empty.
std::vector<std::string_view> split_words(std::string_view text);

inline bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }
// The text in quotes, truncated to 60 characters, with control characters made visible.
std::string quote(std::string_view text);
// The candidate that `text` probably misspells, within `most_edits` edits (0: a third of its length, at least two);
// "" if none is close.
std::string_view nearest(std::string_view text, const std::vector<std::string_view>& candidates, size_t most_edits = 0);

}  // namespace trivet
