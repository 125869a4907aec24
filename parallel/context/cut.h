// Context parallelism splits a sequence into 2c pieces; rank r holds pieces r and 2c - 1 - r, so that all ranks have
// the same amount of causal attention to compute ("zigzag": Llama Team 2024, "The Llama 3 Herd of Models", section
// 3.3.2; Zhu 2024, "Ring Flash Attention"). With c = 2:
//
//     positions   0 … s/4   s/4 … s/2   s/2 … 3s/4   3s/4 … s
//     rank        0         1           1            0
#pragma once

#include "kernels/position_map.h"

namespace trivet {

enum class CpCommType { p2p, all_gather };

struct ContextCut {
  int64_t seq = 0;  // sequence length; a multiple of 2 * ranks if ranks > 1
  int ranks = 1, rank = 0;

  int64_t rows() const { return seq / ranks; }         // per rank
  int64_t piece() const { return seq / (2 * ranks); }  // each half of a rank's rows
  // The positions of this rank's rows.
  PositionMap positions() const { return of(rank); }
  PositionMap of(int other) const {
    if (ranks == 1) return {};
    return {other * piece(), piece(), (2 * ranks - 2 - 2 * other) * piece()};
  }
  // The number of positions up to the end of this rank's first half, and of its last half.
  int64_t seen_by_first() const { return (rank + 1) * piece(); }
  int64_t seen_by_last() const { return (2 * ranks - rank) * piece(); }
};

// A range of a rank's queries, and the range of the owner's keys that they attend to.
struct ContextVisit {
  int64_t first_query, queries, first_key, keys;
  bool causal;  // false: all these queries see all these keys
};
// All queries see the first half of an earlier rank's keys; queries of the last half see all keys of a later rank.
inline ContextVisit visit_of(const ContextCut& cut, int owner) {
  const int64_t all = cut.rows(), half = cut.piece();
  if (owner == cut.rank) return {0, all, 0, all, true};
  return owner < cut.rank ? ContextVisit{0, all, 0, half, false} : ContextVisit{half, half, 0, all, false};
}

}  // namespace trivet
