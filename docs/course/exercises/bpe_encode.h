// bpe_encode: chapter 0, 25 minutes
//
// A byte-level BPE tokenizer has learned pairs of tokens to merge, the most frequent pair first. A word starts with one
// token per byte. While it contains a learned pair, the pair that was learned first is merged, everywhere in the word,
// from left to right. Write this loop.
#pragma once

#include <map>
#include <utility>
#include <vector>

namespace trivet::exercise {

// (left, right) -> the token that replaces them. A smaller token was learned earlier.
using Merges = std::map<std::pair<int, int>, int>;

std::vector<int> bpe_encode(std::vector<int> tokens, const Merges& merges);

}  // namespace trivet::exercise

// Hints
//   1. Each iteration has two passes over the word: find the best pair, then merge it. Stop when there is no such pair.
//   2. The best pair is the one whose merge gives the smallest token, not the leftmost pair.
//   3. In "aaa" the pair (a, a) is merged once: after a merge, continue after both tokens.
// In the engine: engine/data/bpe_tokenizer.cc:BpeTokenizer, with a heap, because a word can be long.
