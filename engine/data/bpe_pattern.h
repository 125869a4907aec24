// How byte-level BPE cuts a text into pieces, which no merge crosses: the regular expressions of GPT-2, Llama 3 and
// Qwen2 by hand, in linear time, with the character classes of one Unicode version whatever the distribution has.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

#include "base/words.h"

namespace trivet {

enum class BpePattern { gpt2, llama3, qwen2 };
constexpr auto words_of(BpePattern) { return word_list("gpt2", "llama3", "qwen2"); }

std::string_view regex_of(BpePattern pattern);

// The size in bytes of the first piece of a text that is not empty. A byte that is not UTF-8 counts as a symbol: no
// letter, number or white space.
size_t bpe_piece_size(BpePattern pattern, std::string_view text);

// Where to cut a text so that its parts have the pieces of the whole under every pattern: the last such place within
// `most` bytes, which are at least 4; 0 where there is none. All of a text that is not longer. may_cut(at): whether
// nothing else forbids it.
size_t bpe_part_size(std::string_view text, size_t most, const std::function<bool(size_t at)>& may_cut);

}  // namespace trivet
