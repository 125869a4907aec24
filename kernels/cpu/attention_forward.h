// The forward pass of one head: FlashAttention-2 (Dao 2023) over panels of queries.
#pragma once

#include "kernels/cpu/attention_head.h"

namespace trivet::TRIVET_CPU {

template <class Panels, class T>
class HeadForward {
 public:
  HeadForward(const AttentionSizes& sizes, std::byte* workspace)
      : z_(sizes),
        keys_(reinterpret_cast<Element*>(workspace)),
        values_(keys_ + matrix_blocks(z_) * kBlock),
        query_(values_ + matrix_blocks(z_) * kBlock),
        probabilities_(query_ + z_.d_panels() * kBlock),
        scores_(reinterpret_cast<float*>(probabilities_ + kTile * kBlock)),
        sums_(scores_ + kTile * kBlock),
        keep_(sums_ + z_.d_panels() * kBlock) {}

  static int64_t workspace_bytes(const AttentionSizes& z) {
    const int64_t elements = 2 * matrix_blocks(z) + z.d_panels() + kTile, floats = kTile + z.d_panels() + 1;
    return kBlock * (elements * static_cast<int64_t>(sizeof(Element)) + floats * static_cast<int64_t>(sizeof(float)));
  }

  // Computes query panels first, first + stride, …  lse: [s].
  void run(HeadMatrix<const T> q, HeadMatrix<const T> k, HeadMatrix<const T> v, HeadMatrix<T> out, float* lse,
           const AttentionDropout& dropout, const FirstKeys& first_keys, int64_t first, int64_t stride) {
    if (k.data != packed_) {
      pack_head_rows<Panels, Side::left>(k, z_.keys, z_, keys_);
      pack_head_columns<Panels, Side::left>(v, z_.keys, z_, values_);
      packed_ = k.data;
    }
    for (int64_t i = first; i < z_.panels(); i += stride) {
      Panels::template pack_rows<Side::right>(q.panel(i), q.ld, z_.s - i * kPanel, z_.d, query_);
      query_panel(i, dropout, first_keys);
      finish(i, out, lse);
    }
  }

 private:
  using Element = typename Panels::Element;
  static constexpr int64_t kTile = 8;  // panels of keys whose scores are held together

  static int64_t matrix_blocks(const AttentionSizes& z) { return z.key_panels() * z.d_panels(); }

  void query_panel(int64_t i, const AttentionDropout& dropout, const FirstKeys& first_keys) {
    // With documents, a query may see no key of a tile that other queries see: -infinity - -infinity would be NaN.
    largest_ = filled_row(first_keys.any() ? std::numeric_limits<float>::lowest() : -kInfinity);
    total_ = {};
    const int64_t panels = z_.seen_key_panels(i), first = std::min(first_keys.panel(i), panels);
    if (first == panels) std::fill_n(sums_, z_.d_panels() * kBlock, 0.0f);
    // Tiles end at multiples of kTile wherever they begin: a query's sums do not depend on its panel's other queries.
    for (int64_t tile = first, count; tile < panels; tile += count) {
      count = std::min((tile / kTile + 1) * kTile, panels) - tile;
      score_tile(i, tile, count, tile == first, first_keys);
      for (int64_t j = 0; j < count; ++j) {
        if (dropout.active()) {
          dropout.draw(i, tile + j, keep_);
          exponentiate<true>(scores_ + j * kBlock, probabilities_ + j * kBlock);
        } else {
          exponentiate<false>(scores_ + j * kBlock, probabilities_ + j * kBlock);
        }
      }
      for (int64_t p = 0; p < z_.d_panels(); ++p) {
        const Element* const values = values_ + (p * z_.key_panels() + tile) * kBlock;
        if (tile == first) Panels::template multiply<false>(values, probabilities_, count, sums_ + p * kBlock);
        else Panels::template multiply<true>(values, probabilities_, count, sums_ + p * kBlock);
      }
    }
  }

  // Computes a tile's scores and the new maxima, and rescales the sums computed with the old ones.
  void score_tile(int64_t i, int64_t tile, int64_t count, bool first, const FirstKeys& first_keys) {
    PanelRow largest = largest_;
    for (int64_t j = 0; j < count; ++j) {
      float* const scores = scores_ + j * kBlock;
      Panels::template multiply<false>(keys_ + (tile + j) * z_.d_panels() * kBlock, query_, z_.d_panels(), scores);
      mask_unseen(z_, first_keys, tile + j, i, scores);
      for (int64_t key = 0; key < kPanel; ++key) {
        const PanelRow row = load_row(scores + key * kPanel);
        for (int64_t v = 0; v < PanelRow::kVectors; ++v) largest.v[v] = larger(largest.v[v], row.v[v]);
      }
    }
    PanelRow factor;
    for (int64_t v = 0; v < PanelRow::kVectors; ++v) {
      factor.v[v] = exp_of_nonpositive((largest_.v[v] - largest.v[v]) * z_.scale());
      total_.v[v] *= factor.v[v];
    }
    largest_ = largest;
    if (first) return;
    for (int64_t row = 0; row < z_.d_panels() * kPanel; ++row)
      for (int64_t v = 0; v < PanelRow::kVectors; ++v) {
        float* const sum = sums_ + row * kPanel + v * kLanes;
        store(sum, load(sum) * factor.v[v]);
      }
  }

  // Turns a block of scores into a step of probabilities, and adds them to the totals.
  template <bool drop>
  void exponentiate(const float* scores, Element* probabilities) {
    const float scale = z_.scale();
    PanelRow offset, total = total_;
    for (int64_t v = 0; v < PanelRow::kVectors; ++v) offset.v[v] = largest_.v[v] * scale;
    for (int64_t pair = 0; pair < kPanel / 2; ++pair) {
      PanelRow p[2];
      for (int64_t row = 0; row < 2; ++row) {
        const int64_t at = (2 * pair + row) * kPanel;
        p[row] = load_row(scores + at);
        for (int64_t v = 0; v < PanelRow::kVectors; ++v) {
          p[row].v[v] = exp_of_nonpositive(p[row].v[v] * scale - offset.v[v]);
          total.v[v] += p[row].v[v];
          if constexpr (drop) p[row].v[v] *= load(keep_ + at + v * kLanes);
        }
      }
      Panels::put_right(pair, p[0], p[1], probabilities);
    }
    total_ = total;
  }

  void finish(int64_t i, HeadMatrix<T> out, float* lse) {
    alignas(64) float block[kBlock];
    const int64_t rows = std::min(kPanel, z_.s - i * kPanel);
    PanelRow divisor;  // 1 for queries that see no key: their sums are 0
    for (int64_t v = 0; v < PanelRow::kVectors; ++v)
      divisor.v[v] = total_.v[v] == Floats{} ? Floats{} + 1.0f : total_.v[v];
    for (int64_t row = 0; row < z_.d_panels() * kPanel; ++row)
      for (int64_t v = 0; v < PanelRow::kVectors; ++v) {
        float* const sum = sums_ + row * kPanel + v * kLanes;
        store(sum, load(sum) / divisor.v[v]);
      }
    for (int64_t p = 0; p < z_.d_panels(); ++p) {
      transpose_block(sums_ + p * kBlock, kPanel, block);
      store_block(block, 1, out.panel(i) + p * kPanel, out.ld, rows, z_.d - p * kPanel);
    }
    for (int64_t r = 0; r < rows; ++r)
      lse[i * kPanel + r] =
          largest_.v[r / kLanes][r % kLanes] * z_.scale() + std::log(total_.v[r / kLanes][r % kLanes]);
  }

  const AttentionSizes z_;
  const T* packed_ = nullptr;     // the keys packed in keys_: heads of a group share them
  Element* const keys_;           // [panels][d steps], left: all keys
  Element* const values_;         // [d panels][position steps], left: all values, transposed
  Element* const query_;          // [d steps], right: a panel
  Element* const probabilities_;  // [kTile steps], right: keys of a tile x queries
  float* const scores_;           // [kTile] blocks
  float* const sums_;             // [d panels] blocks: the output transposed, not yet divided by the totals
  float* const keep_;             // a block
  PanelRow largest_, total_;      // per query: the largest score so far, and the sum of exp(score - largest)
};

}  // namespace trivet::TRIVET_CPU
