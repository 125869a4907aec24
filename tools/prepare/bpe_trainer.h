// Trains a byte-level BPE with the same merges as BpeTrainer in Hugging Face's `tokenizers` with an alphabet of all
// bytes and min_frequency 0.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/data/bpe_model.h"

namespace trivet {

using PieceCounts = std::unordered_map<std::string, int64_t>;

// Adds the pieces of a text to the counts. Special tokens in it count as text.
void count_pieces(const BpeCutter& cutter, std::string_view text, PieceCounts& counts);

// Assigns ids to the special tokens, then to the bytes in the order of the files' alphabet, then to the merges. Each
// merge joins the most frequent pair or, on ties, the pair with the smallest ids. Ends early if no pair is left.
BpeModel train_bpe(const PieceCounts& counts, int64_t vocab_size, BpePattern pattern,
                   const std::vector<std::string>& special);

}  // namespace trivet
