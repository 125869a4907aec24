#include "base/scalar.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <numeric>

namespace trivet {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Strips a leading plus and underscores between two digits; empty if an underscore is anywhere else.
std::optional<std::string> plain(std::string_view text) {
  if (text.size() > 100) return {};
  if (text.starts_with('+')) {
    text.remove_prefix(1);
    if (text.starts_with('-')) return {};
  }
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') out += text[i];
    else if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) return {};
  }
  return out;
}

}  // namespace

std::optional<int64_t> parse_integer(std::string_view text) {
  const auto stripped = plain(text);
  if (!stripped) return {};
  std::string_view rest = *stripped;
  std::string digits;
  int exponent = 0;
  const auto take_digits = [&] {
    size_t n = 0;
    while (n < rest.size() && is_digit(rest[n])) ++n;
    digits += rest.substr(0, n);
    rest.remove_prefix(n);
    return static_cast<int>(n);
  };

  const bool negative = rest.starts_with('-');
  if (negative) rest.remove_prefix(1);
  if (take_digits() == 0) return {};
  if (digits.size() > 1 && digits[0] == '0') return {};
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    exponent = -take_digits();
  }
  if (rest.starts_with('e') || rest.starts_with('E')) {
    rest.remove_prefix(rest.size() > 1 && rest[1] == '+' ? 2 : 1);
    int written = 0;
    const auto end = std::from_chars(rest.data(), rest.data() + rest.size(), written);
    if (end.ec != std::errc() || written < -1000 || written > 1000) return {};
    rest.remove_prefix(static_cast<size_t>(end.ptr - rest.data()));
    exponent += written;
  }
  if (!rest.empty()) return {};

  // Stays in decimal throughout: a double would round above 2^53.
  while (exponent < 0 && digits.size() > 1 && digits.back() == '0') digits.pop_back(), ++exponent;
  if (digits.find_first_not_of('0') == std::string::npos) return 0;
  if (exponent < 0 || exponent > 18) return {};
  const std::string whole = (negative ? "-" : "") + digits + std::string(static_cast<size_t>(exponent), '0');
  int64_t value = 0;
  const auto end = std::from_chars(whole.data(), whole.data() + whole.size(), value);
  if (end.ec != std::errc()) return {};
  return value;
}

std::optional<double> parse_number(std::string_view text) {
  const auto stripped = plain(text);
  if (!stripped) return {};
  double value = 0;
  const char* const last = stripped->data() + stripped->size();
  const auto end = std::from_chars(stripped->data(), last, value);
  if (end.ec != std::errc() || end.ptr != last || !std::isfinite(value)) return {};
  return value;
}

std::optional<bool> parse_truth(std::string_view text) {
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  return {};
}

std::string_view nearest(std::string_view text, const std::vector<std::string_view>& candidates, size_t most_edits) {
  std::string_view best;
  if (text.size() > 100) return best;
  size_t best_distance = (most_edits > 0 ? most_edits : std::max<size_t>(2, text.size() / 3)) + 1;
  std::vector<size_t> row;
  for (const std::string_view candidate : candidates) {  // Levenshtein distance, one row at a time
    row.resize(candidate.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < text.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i + 1;
      for (size_t j = 0; j < candidate.size(); ++j) {
        const size_t replaced = diagonal + (text[i] != candidate[j]);
        diagonal = row[j + 1];
        row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
      }
    }
    if (row.back() < best_distance) best_distance = row.back(), best = candidate;
  }
  return best;
}

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const size_t comma = text.find(',');
    std::string_view word = text.substr(0, comma);
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    words.push_back(word);
    if (comma == std::string_view::npos) return words;
    text.remove_prefix(comma + 1);
  }
}

std::string quote(std::string_view text) {
  constexpr size_t kMost = 60;
  std::string out = "\"";
  for (const char c : text.substr(0, kMost)) {
    if (is_control(c)) out += fmt::format("\\x{:02x}", c);
    else out += c;
  }
  return out + (text.size() > kMost ? "…\"" : "\"");
}

}  // namespace trivet
