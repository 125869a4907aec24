// What the two directions of attention share on the CPU: sizes, where a head lies in the tensors, and blocks of scores.
//
// Both work on one head of one batch entry at a time, by panels of 32 positions, and hold scores transposed: a block is
// [32 keys, 32 queries]. So a maximum, a sum or a log-sum-exp of each query is a row of vectors, nothing is ever
// summed across a vector, and a block of probabilities is at once the operand of the next product.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/cpu/dropout.h"
#include "kernels/cpu/panels.h"

namespace trivet {

struct AttentionSizes {
  int64_t s, b, heads, d;
  int64_t panels() const { return panels_of(s); }    // of positions
  int64_t d_panels() const { return panels_of(d); }  // of a head's columns; steps where those are summed over
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(d)); }
};

// One head of one batch entry of a tensor [s, b, heads * width]: position p, column c is at data[p * ld + c].
template <class T>
struct HeadView {
  T* data;
  int64_t ld;
  T* panel(int64_t i) const { return data + i * kPanel * ld; }
};

template <class T>
HeadView<T> head_view(T* tensor, const AttentionSizes& sizes, int64_t width, int64_t batch, int64_t head) {
  return {tensor + (batch * sizes.heads + head) * width, sizes.b * sizes.heads * width};
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

// No query sees a later key: in the block of a panel's keys and its own queries, those scores become -infinity.
inline void mask_future(float* scores) {
  for (int64_t key = 1; key < kPanel; ++key)
    std::fill_n(scores + key * kPanel, key, -std::numeric_limits<float>::infinity());
}

// The first `rows` rows and `columns` columns of a block, times `factor`, to where the top left element is.
template <class T>
void store_block(const float* block, float factor, T* to, int64_t ld, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < std::min(rows, kPanel); ++r)
    for_vectors(std::min(columns, kPanel),
                [&](auto at) { at.store(to + r * ld, at.load(block + r * kPanel) * factor); });
}

// 1 / (1 - probability) or 0 for each of a block [32 keys, 32 queries] of one head's probabilities.
class AttentionDropout {
 public:
  AttentionDropout(const Dropout& dropout, int64_t batch, int64_t head)
      : dropout_(dropout),
        row0_(((dropout.first_sample + batch) * dropout.total_heads + dropout.first_head + head) * dropout.seq_length) {
  }

  bool active() const { return dropout_.probability > 0; }
  void draw(int64_t query_panel, int64_t key_panel, float* block) const {
    alignas(64) float by_query[kBlock], buffer[kPanel + kDropoutSlack];
    for (int64_t i = 0; i < kPanel; ++i) {
      const int64_t first = (row0_ + query_panel * kPanel + i) * dropout_.seq_length + key_panel * kPanel;
      std::copy_n(dropout_scales(dropout_, first, kPanel, buffer), kPanel, by_query + i * kPanel);
    }
    transpose_block(by_query, kPanel, block);
  }

 private:
  const Dropout& dropout_;
  int64_t row0_;  // of the matrix [all heads of all samples * seq_length, seq_length] of probabilities
};

}  // namespace trivet
