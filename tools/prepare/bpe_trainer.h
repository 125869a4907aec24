// Training a byte-level BPE, merge for merge as the BpeTrainer of Hugging Face's `tokenizers` with the alphabet of all
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

// Adds the pieces of a text. Special tokens in it are text.
void count_pieces(const BpeCutter& cutter, std::string_view text, PieceCounts& counts);

// Ids: the special tokens, the bytes in the order of the files' alphabet, the merges. Each merge is of the pair that
// occurs most often, of equal ones that with the smallest ids. Ends early where no pair is left.
BpeModel train_bpe(const PieceCounts& counts, int64_t vocab_size, BpePattern pattern,
                   const std::vector<std::string>& special);

}  // namespace trivet
