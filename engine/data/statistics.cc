#include "engine/data/statistics.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numeric>

#include "base/check.h"
#include "base/piece.h"
#include "base/statistics.h"

namespace trivet {
namespace {

constexpr int64_t kBlockTokens = piece(1 << 16, 16);
// Larger than any existing vocabulary; keeps a damaged file from requesting all memory.
constexpr int64_t kMaxVocab = 1 << 24;

}  // namespace

std::vector<int64_t> count_tokens(const IndexedDataset& dataset, DocumentRange documents,
                                  std::optional<int64_t> vocab_size) {
  const int64_t limit = vocab_size.value_or(kMaxVocab);
  std::vector<int64_t> counts(static_cast<size_t>(vocab_size.value_or(0)));
  std::vector<int32_t> block(kBlockTokens);
  const int64_t end = dataset.begin(documents.end);
  for (int64_t first = dataset.begin(documents.begin); first < end; first += kBlockTokens) {
    const auto part = std::span(block).first(static_cast<size_t>(std::min(kBlockTokens, end - first)));
    dataset.read(first, part);
    for (const int32_t& token : part) {
      if (token < 0 || token >= limit)
        throw DataError(fmt::format("{}.bin: token {} of the dataset has id {}, expected 0 to {}", dataset.prefix(),
                                    first + (&token - part.data()), token, limit - 1));
      const auto id = static_cast<size_t>(token);
      if (id >= counts.size()) counts.resize(id + 1);
      ++counts[id];
    }
  }
  return counts;
}

double unigram_entropy(const std::vector<int64_t>& counts) {
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double nats = 0;
  for (const int64_t count : counts) {
    if (count == 0) continue;
    const double p = static_cast<double>(count) / total;
    nats -= p * std::log(p);
  }
  return nats;
}

LengthSummary summarize_lengths(const IndexedDataset& dataset, DocumentRange documents) {
  if (documents.size() == 0) return {};
  std::vector<int64_t> lengths;
  lengths.reserve(static_cast<size_t>(documents.size()));
  for (int64_t i = documents.begin; i < documents.end; ++i) lengths.push_back(dataset.length(i));
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  return {*least, upper_median(lengths), *most, std::count(lengths.begin(), lengths.end(), 0)};
}

}  // namespace trivet
