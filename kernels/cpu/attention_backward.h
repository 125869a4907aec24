// The backward pass of a group's heads, tiled over keys and queries (Dao et al. 2022, algorithm 4). With D =
// rowsum(dO o O),
//   P = exp(S - lse)   dV = P^T dO   dP = dO V^T   dS = P o (dP - D)   dQ = dS K   dK = dS^T Q
// Dropout's factors apply between P and dV, and to dP. The outer loop runs over the group's query heads, the inner one
// over tiles of keys: a tile's dK and dV are complete for one head before the next tile starts; dQ of all positions
// accumulates over the tiles.
#pragma once

#include "kernels/cpu/attention_head.h"

namespace trivet::TRIVET_CPU {

template <class Panels, class T>
class GroupBackward {
 public:
  GroupBackward(const AttentionSizes& sizes, std::byte* workspace) : z_(sizes) {
    auto* elements = reinterpret_cast<Element*>(workspace);
    for (Element** matrix : {&keys_, &values_, &key_columns_})
      *matrix = elements, elements += z_.key_panels() * z_.d_panels() * kBlock;
    for (Element** matrix : {&queries_, &douts_, &query_columns_, &dout_columns_})
      *matrix = elements, elements += query_blocks(z_) * kBlock;
    for (Element** tile : {&p_, &ds_, &ds_right_}) *tile = elements, elements += kTile * kTile * kBlock;
    dq_ = reinterpret_cast<float*>(elements);
    dk_ = dq_ + query_blocks(z_) * kBlock;
    dv_ = dk_ + sum_panels(z_) * z_.d_panels() * kBlock;
    scores_ = dv_ + sum_panels(z_) * z_.d_panels() * kBlock;
    dp_ = scores_ + kBlock;
    keep_ = dp_ + kBlock;
    lse_ = keep_ + kBlock;
    delta_ = lse_ + z_.panels() * kPanel;
  }

  static int64_t workspace_bytes(const AttentionSizes& z) {
    const int64_t elements = 3 * z.key_panels() * z.d_panels() + 4 * query_blocks(z) + 3 * kTile * kTile;
    const int64_t floats = query_blocks(z) + 2 * sum_panels(z) * z.d_panels() + 3;
    return kBlock * (elements * static_cast<int64_t>(sizeof(Element)) + floats * static_cast<int64_t>(sizeof(float))) +
           2 * z.panels() * kPanel * static_cast<int64_t>(sizeof(float));
  }

  // One query head of the group; lse: [s]. run() is called for the members in order, which is also the order of the
  // sums: the first member packs the keys and values, the last one stores dk and dv.
  struct Head {
    int64_t member;
    HeadMatrix<const T> dout, q, k, v, out;
    const float* lse;
    HeadMatrix<T> dq, dk, dv;
  };
  void run(const Head& head, const AttentionDropout& dropout, const FirstKeys& first_keys) {
    const bool first = head.member == 0, last = head.member == z_.members - 1;
    if (first) {
      pack_head_rows<Panels, Side::left>(head.k, z_.keys, z_, keys_);
      pack_head_rows<Panels, Side::left>(head.v, z_.keys, z_, values_);
      pack_head_columns<Panels, Side::left>(head.k, z_.keys, z_, key_columns_);
    }
    pack_head_rows<Panels, Side::right>(head.q, z_.s, z_, queries_);
    pack_head_rows<Panels, Side::right>(head.dout, z_.s, z_, douts_);
    pack_head_columns<Panels, Side::right>(head.q, z_.s, z_, query_columns_);
    pack_head_columns<Panels, Side::right>(head.dout, z_.s, z_, dout_columns_);
    set_rows(head.dout, head.out, head.lse);
    std::fill_n(dq_, query_blocks(z_) * kBlock, 0.0f);
    for (int64_t j0 = 0; j0 < z_.key_panels(); j0 += kTile) {
      const Range keys{j0, std::min(j0 + kTile, z_.key_panels())};
      if (first)
        for (float* const sums : {dk_, dv_}) std::fill_n(sums + sum_at(j0, 0), kTile * z_.d_panels() * kBlock, 0.0f);
      for (int64_t i0 = z_.first_query_panel(j0) / kTile * kTile; i0 < z_.panels() && first_keys.panel(i0) < keys.end;
           i0 += kTile) {
        const Range queries{i0, std::min(i0 + kTile, z_.panels())};
        for (int64_t j = keys.begin; j < keys.end; ++j) {
          const Range seeing = seeing_of(j, queries, first_keys);
          for (int64_t i = seeing.begin; i < seeing.end; ++i) score_block(j, i, dropout, first_keys);
        }
        multiply_tile(keys, queries, first_keys);
      }
      if (last) store_keys(keys, head.dk, head.dv);
    }
    store_queries(head.dq);
  }

 private:
  using Element = typename Panels::Element;
  static constexpr int64_t kTile = 4;  // panels of keys, and of queries, per tile
  struct Range {
    int64_t begin, end;
  };

  static int64_t query_blocks(const AttentionSizes& z) { return z.panels() * z.d_panels(); }
  // Panels of keys whose dk and dv sums are stored: one tile's, or all if several heads add to them.
  static int64_t sum_panels(const AttentionSizes& z) {
    return z.members == 1 ? kTile : (z.key_panels() + kTile - 1) / kTile * kTile;
  }
  // The offset in dk_ and dv_ of the block for this panel of keys and this panel of columns.
  int64_t sum_at(int64_t j, int64_t c) const { return (j % sum_panels(z_) * z_.d_panels() + c) * kBlock; }
  int64_t steps() const { return z_.d_panels(); }
  static int64_t in_tile(int64_t row, int64_t column) { return (row % kTile * kTile + column % kTile) * kBlock; }

  // The panels of `queries` that see a key of panel j.
  Range seeing_of(int64_t j, Range queries, const FirstKeys& first_keys) const {
    Range seeing{std::max(z_.first_query_panel(j), queries.begin), queries.end};
    while (seeing.end > seeing.begin && first_keys.panel(seeing.end - 1) > j) --seeing.end;
    return seeing;
  }

  // lse and D of each query; queries that see no key, and rows past the end, get values that make probabilities 0.
  void set_rows(HeadMatrix<const T> dout, HeadMatrix<const T> out, const float* lse) {
    for (int64_t i = 0; i < z_.s; ++i) {
      lse_[i] = lse[i] == -kInfinity ? kInfinity : lse[i];
      delta_[i] =
          sum_over(z_.d, [&](auto at) { return at.load(dout.data + i * dout.ld) * at.load(out.data + i * out.ld); });
    }
    std::fill(lse_ + z_.s, lse_ + z_.panels() * kPanel, kInfinity);
    std::fill(delta_ + z_.s, delta_ + z_.panels() * kPanel, 0.0f);
  }

  // P and dS of the keys of panel j and the queries of panel i.
  void score_block(int64_t j, int64_t i, const AttentionDropout& dropout, const FirstKeys& first_keys) {
    Panels::template multiply<false>(keys_ + j * steps() * kBlock, queries_ + i * steps() * kBlock, steps(), scores_);
    Panels::template multiply<false>(values_ + j * steps() * kBlock, douts_ + i * steps() * kBlock, steps(), dp_);
    mask_unseen(z_, first_keys, j, i, scores_);
    if (dropout.active()) {
      dropout.draw(i, j, keep_);
      differentiate<true>(j, i);
    } else {
      differentiate<false>(j, i);
    }
  }

  template <bool drop>
  void differentiate(int64_t j, int64_t i) {
    const float scale = z_.scale();
    const PanelRow lse = load_row(lse_ + i * kPanel), delta = load_row(delta_ + i * kPanel);
    Element *const p_to = p_ + in_tile(j, i), *const ds_to = ds_ + in_tile(j, i),
                   *const right_to = ds_right_ + in_tile(i, j);
    for (int64_t pair = 0; pair < kPanel / 2; ++pair) {
      PanelRow ds[2];
      for (int64_t row = 0; row < 2; ++row) {
        const int64_t at = (2 * pair + row) * kPanel;
        PanelRow p = load_row(scores_ + at);
        ds[row] = load_row(dp_ + at);
        for (int64_t v = 0; v < PanelRow::kVectors; ++v) {
          p.v[v] = exp_of_nonpositive(p.v[v] * scale - lse.v[v]);
          if constexpr (drop) ds[row].v[v] *= load(keep_ + at + v * kLanes);
          ds[row].v[v] = p.v[v] * (ds[row].v[v] - delta.v[v]);
          if constexpr (drop) p.v[v] *= load(keep_ + at + v * kLanes);
        }
        Panels::put_left(2 * pair + row, p, p_to);
        Panels::put_left(2 * pair + row, ds[row], ds_to);
      }
      Panels::put_right(pair, ds[0], ds[1], right_to);
    }
  }

  // Adds a tile's contribution to dV and dK of its keys and to dQ of its queries. Blocks above the diagonal and those
  // before a document are skipped.
  void multiply_tile(Range keys, Range queries, const FirstKeys& first_keys) {
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      const Range seeing = seeing_of(j, queries, first_keys);
      const int64_t first = seeing.begin, count = seeing.end - first;
      if (count <= 0) continue;
      for (int64_t c = 0; c < z_.d_panels(); ++c) {
        const int64_t columns = (c * z_.panels() + first) * kBlock, sum = sum_at(j, c);
        Panels::template multiply<true>(p_ + in_tile(j, first), dout_columns_ + columns, count, dv_ + sum);
        Panels::template multiply<true>(ds_ + in_tile(j, first), query_columns_ + columns, count, dk_ + sum);
      }
    }
    for (int64_t i = queries.begin; i < queries.end; ++i) {
      const int64_t first = std::max(keys.begin, first_keys.panel(i));
      const int64_t count = std::min(keys.end, z_.seen_key_panels(i)) - first;
      if (count <= 0) continue;
      for (int64_t c = 0; c < z_.d_panels(); ++c)
        Panels::template multiply<true>(key_columns_ + (c * z_.key_panels() + first) * kBlock,
                                        ds_right_ + in_tile(i, first), count, dq_ + (i * z_.d_panels() + c) * kBlock);
    }
  }

  void store_keys(Range keys, HeadMatrix<T> dk, HeadMatrix<T> dv) const {
    for (int64_t j = keys.begin; j < keys.end; ++j)
      for (int64_t c = 0; c < z_.d_panels(); ++c) {
        const int64_t sum = sum_at(j, c), column = c * kPanel, rows = z_.keys - j * kPanel;
        store_block(dk_ + sum, z_.scale(), dk.panel(j) + column, dk.ld, rows, z_.d - column);
        store_block(dv_ + sum, 1, dv.panel(j) + column, dv.ld, rows, z_.d - column);
      }
  }

  void store_queries(HeadMatrix<T> dq) const {
    alignas(64) float block[kBlock];
    for (int64_t i = 0; i < z_.panels(); ++i)
      for (int64_t c = 0; c < z_.d_panels(); ++c) {
        transpose_block(dq_ + (i * z_.d_panels() + c) * kBlock, kPanel, block);
        store_block(block, z_.scale(), dq.panel(i) + c * kPanel, dq.ld, z_.s - i * kPanel, z_.d - c * kPanel);
      }
  }

  const AttentionSizes z_;
  // All positions, of keys or of queries. By position: [panels][d steps]; by column: [d panels][position steps].
  Element *keys_, *values_;                 // left
  Element *queries_, *douts_;               // right
  Element* key_columns_;                    // left, by column
  Element *query_columns_, *dout_columns_;  // right, by column
  // A tile of keys x queries, with a step per pair of panels.
  Element *p_, *ds_;             // left:  [keys][queries]
  Element* ds_right_;            // right: [queries][keys]
  float* dq_;                    // [panels][d panels] blocks, transposed
  float *dk_, *dv_;              // [sum_panels][d panels] blocks
  float *scores_, *dp_, *keep_;  // a block each
  float *lse_, *delta_;          // [positions]
};

}  // namespace trivet::TRIVET_CPU
