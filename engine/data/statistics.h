// Statistics of a dataset.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/data/gpt_dataset.h"
#include "engine/data/indexed_dataset.h"

namespace trivet {

// The count of each token id in these documents: [vocab_size], or [largest id + 1] without vocab_size. Throws DataError
// naming an id outside the vocabulary.
std::vector<int64_t> count_tokens(const IndexedDataset& dataset, DocumentRange documents,
                                  std::optional<int64_t> vocab_size = std::nullopt);

// The entropy of the token frequencies in nats per token: the loss of the best model without context. 0 without tokens.
double unigram_entropy(const std::vector<int64_t>& counts);

struct LengthSummary {
  int64_t least = 0;
  int64_t median = 0;
  int64_t most = 0;
  int64_t empty = 0;  // documents without tokens
};

LengthSummary summarize_lengths(const IndexedDataset& dataset, DocumentRange documents);

}  // namespace trivet
