// Words for enum values: words_of(E), next to the enum, lists them in order. Values beyond the list have no word.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

namespace trivet {

template <class... Words>
constexpr std::array<std::string_view, sizeof...(Words)> word_list(Words... words) {
  return {words...};
}

template <class E>
constexpr std::string_view word_of(E value) {
  return words_of(value)[static_cast<size_t>(value)];
}

// Empty if the text is not a word of E.
template <class E>
std::optional<E> parse_word(std::string_view text) {
  constexpr auto words = words_of(E{});
  const auto found = std::ranges::find(words, text);
  return found == words.end() ? std::nullopt : std::optional(static_cast<E>(found - words.begin()));
}

}  // namespace trivet
