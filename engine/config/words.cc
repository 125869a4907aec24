#include "engine/config/words.h"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>

namespace trivet {

std::string_view nearest(std::string_view text, const std::vector<std::string_view>& candidates) {
  std::string_view best;
  if (text.size() > 100) return best;
  size_t best_distance = std::max<size_t>(2, text.size() / 3) + 1;
  std::vector<size_t> row;
  for (const std::string_view candidate : candidates) {  // Levenshtein's distance, one row at a time
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
