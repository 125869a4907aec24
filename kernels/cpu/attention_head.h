// Shared by attention's forward and backward pass on the CPU: sizes, one head of a view, and blocks of scores.
//
// Both passes work on one head of one batch entry at a time, in panels of 32 positions, and hold scores transposed: a
// block is [32 keys, 32 queries]. So a maximum, a sum or a log-sum-exp of each query is a row of vectors, nothing is
// ever summed across a vector, and a block of probabilities is already the operand of the next GEMM.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/cpu/dropout.h"
#include "kernels/cpu/panels.h"

namespace trivet::TRIVET_CPU {

struct AttentionSizes {
  int64_t s, keys, b, groups, members, d;
  int64_t past;  // keys that the first query sees before its own; each later query one more. All keys if not causal
  int64_t heads() const { return groups * members; }
  int64_t panels() const { return panels_of(s); }  // of queries
  int64_t key_panels() const { return panels_of(keys); }
  // The first panel of queries that sees a key of panel j, and the panels of keys that panel i of queries sees.
  int64_t first_query_panel(int64_t j) const { return std::max<int64_t>(0, j - panels_of(past)); }
  int64_t seen_key_panels(int64_t i) const { return std::min(key_panels(), i + panels_of(past) + 1); }
  int64_t d_panels() const { return panels_of(d); }  // of a head's columns; steps if those are summed over
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(d)); }
};

// One head of one batch entry: position p, column c is at data[p * ld + c].
template <class T>
struct HeadMatrix {
  T* data;
  int64_t ld;
  T* panel(int64_t i) const { return data + i * kPanel * ld; }
};

template <class T, class Memory>
HeadMatrix<T> head_of(const HeadsOf<Memory>& view, int64_t entry, int64_t head) {
  return {static_cast<T*>(view.data()) + view.layout.at(0, entry, head), view.layout.position};
}

// Packs the first `positions` of a head as panels of rows [panels][d steps], or of columns [d panels][position steps].
template <class Panels, Side side, class T>
void pack_head_rows(HeadMatrix<const T> x, int64_t positions, const AttentionSizes& z, typename Panels::Element* to) {
  for (int64_t i = 0; i < panels_of(positions); ++i)
    Panels::template pack_rows<side>(x.panel(i), x.ld, positions - i * kPanel, z.d, to + i * z.d_panels() * kBlock);
}
template <class Panels, Side side, class T>
void pack_head_columns(HeadMatrix<const T> x, int64_t positions, const AttentionSizes& z,
                       typename Panels::Element* to) {
  for (int64_t p = 0; p < z.d_panels(); ++p)
    Panels::template pack_columns<side>(x.data + p * kPanel, x.ld, z.d - p * kPanel, positions,
                                        to + p * panels_of(positions) * kBlock);
}

inline PanelRow load_row(const float* from) {
  PanelRow x;
  for (int64_t i = 0; i < PanelRow::kVectors; ++i) x.v[i] = load(from + i * kLanes);
  return x;
}

inline PanelRow filled_row(float value) {
  PanelRow x;
  for (Floats& v : x.v) v = Floats{} + value;
  return x;
}

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The first key row of each query's document, in one batch entry; 0 without documents.
class FirstKeys {
 public:
  FirstKeys(const DocumentStarts& documents, int64_t entry, int64_t batch)
      : starts_(documents.starts ? documents.starts.as<int32_t>() + entry : nullptr),
        batch_(batch),
        keys_(documents.keys) {}

  bool any() const { return starts_ != nullptr; }
  int64_t at(int64_t query) const { return starts_ ? keys_.before(starts_[query * batch_]) : 0; }
  // The first panel of keys that panel i of queries sees.
  int64_t panel(int64_t i) const { return at(i * kPanel) / kPanel; }

 private:
  const int32_t* starts_;
  int64_t batch_;
  PositionMap keys_;
};

// Sets the scores of key panel j and query panel i to -infinity where the query does not see the key, or there is no
// such key.
inline void mask_unseen(const AttentionSizes& z, const FirstKeys& first_keys, int64_t j, int64_t i, float* scores) {
  const int64_t ahead = z.past + (i - j) * kPanel, there = z.keys - j * kPanel;
  if (ahead < kPanel - 1 || there < kPanel)
    for (int64_t key = 0; key < kPanel; ++key)
      std::fill_n(scores + key * kPanel, key < there ? std::clamp<int64_t>(key - ahead, 0, kPanel) : kPanel,
                  -kInfinity);
  const int64_t queries = std::min(kPanel, z.s - i * kPanel);
  if (first_keys.at(i * kPanel + queries - 1) <= j * kPanel) return;
  for (int64_t query = 0; query < queries; ++query) {
    const int64_t hidden = std::min(kPanel, first_keys.at(i * kPanel + query) - j * kPanel);
    for (int64_t key = 0; key < hidden; ++key) scores[key * kPanel + query] = -kInfinity;
  }
}

// Stores the first `rows` rows and `columns` columns of a block, times `factor`. `to`: the top left element.
template <class T>
void store_block(const float* block, float factor, T* to, int64_t ld, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < std::min(rows, kPanel); ++r)
    for_vectors(std::min(columns, kPanel),
                [&](auto at) { at.store(to + r * ld, at.load(block + r * kPanel) * factor); });
}

// Dropout factors, 1 / (1 - probability) or 0, for a block [32 keys, 32 queries] of one head's probabilities.
class AttentionDropout {
 public:
  AttentionDropout(const Dropout& dropout, int64_t batch, int64_t head)
      : dropout_(dropout), pairs_(dropout_pairs(dropout.seq_length)) {
    if (active())
      head_ = (*dropout.first_sample.as<int64_t>() + batch) * dropout.total_heads + dropout.first_head + head;
  }

  bool active() const { return dropout_.probability > 0; }

  // Draws the squares of consecutive queries, one vector at a time.
  void draw(int64_t query_panel, int64_t key_panel, float* block) const {
    static_assert(kPanel % 16 == 0 && 8 % kCounters == 0);
    const uint32_t threshold = dropout_threshold(dropout_.probability);
    const float kept = 1.0f / (1.0f - dropout_.probability);
    const auto put = [&](Words words, int64_t key, int64_t query) {
      const NarrowFloats scale = narrow(words) >= threshold ? NarrowFloats{} + kept : NarrowFloats{};
      std::memcpy(block + key * kPanel + query, &scale, sizeof scale);
    };
    for (int64_t k = 0; k < kPanel / 2; ++k) {
      const int64_t key = k / 8 * 16 + k % 8;
      const int64_t row = (head_ * pairs_ + dropout_pair(dropout_.keys.at(key_panel * kPanel + key))) * pairs_;
      for (int64_t q = 0; q < kPanel / 2; q += kCounters) {
        const int64_t query = q / 8 * 16 + q % 8;
        const int64_t square = row + dropout_pair(dropout_.positions.at(query_panel * kPanel + query));
        const FourWords words = philox_vector(static_cast<uint64_t>(square), dropout_.site, dropout_.seed);
        for (int word = 0; word < 4; ++word) put(words.w[word], key + word % 2 * 8, query + word / 2 * 8);
      }
    }
  }

 private:
  const Dropout& dropout_;
  int64_t pairs_;     // of positions
  int64_t head_ = 0;  // index among all heads of all samples
};

}  // namespace trivet::TRIVET_CPU
