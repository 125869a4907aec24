// Shared by attention kernels: locating a batch entry's heads in the views, masks, dropout, and online softmax.
#pragma once

#include <cfloat>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/ptx.cuh"

namespace trivet {

// A HeadsView for a kernel.
template <class T>
struct Heads : HeadsLayout {
  T* data;

  explicit Heads(const HeadsView& x) : HeadsLayout(x.layout), data(static_cast<T*>(x.data())) {}
};

// AttentionArgs for a kernel: typed, with all values that do not depend on the head precomputed. kDocuments: there may
// be documents; a kernel compiled without it ignores them.
template <class T, bool kDocuments_ = true>
struct HeadArgs {
  static constexpr bool kDocuments = kDocuments_;
  Heads<const T> q, k, v;
  T* out;
  float* lse;
  const T* dout;
  Heads<T> dq, dk, dv;
  float* delta;
  AttentionPart part;
  int s, keys, past, groups, members, out_heads, d;
  int64_t out_stride, out_entry;  // strides of out and dout, between positions and between batch entries
  float scale;                    // applied to scores: 1 / sqrt(d)
  DropoutArgs dropout;
  const int32_t* starts;
  PositionMap key_positions;

  explicit HeadArgs(const AttentionArgs& a)
      : q(a.qkv.q),
        k(a.qkv.k),
        v(a.qkv.v),
        out(static_cast<T*>(a.out.data())),
        lse(a.lse),
        dout(static_cast<const T*>(a.dout.data())),
        dq(a.dqkv.q),
        dk(a.dqkv.k),
        dv(a.dqkv.v),
        delta(a.delta),
        part(a.part),
        s(static_cast<int>(q.s)),
        keys(static_cast<int>(k.s)),
        past(static_cast<int>(a.past())),
        groups(static_cast<int>(q.groups)),
        members(static_cast<int>(q.members)),
        out_heads(static_cast<int>(part.heads_of(q))),
        d(static_cast<int>(q.d)),
        out_stride(a.out.layout.position),
        out_entry(a.out.layout.entry),
        scale(1.0f / std::sqrt(static_cast<float>(d))),
        dropout(a.dropout),
        starts(static_cast<const int32_t*>(a.documents.starts.data)),
        key_positions(a.documents.keys) {}

  // `which` numbers the query heads of all batch entries, entry * heads + head; which / members numbers the kv heads,
  // entry * groups + group. A pointer to, or the offset of, column 0 of position 0:
  template <class U>
  __device__ U* query_head(const Heads<U>& x, int which) const {
    return kv_head(x, which / members) + which % members * x.member;
  }
  template <class U>
  __device__ U* kv_head(const Heads<U>& x, int kv) const {
    return x.data + kv / groups * x.entry + kv % groups * x.group;
  }
  __device__ int64_t out_at(int which) const { return which / heads() * out_entry + which % heads() * d; }
  __device__ int heads() const { return groups * members; }
  // The head's index in out and lse, relative to the part's first head; they may contain more heads (AttentionPart).
  __device__ int out_head(int which) const { return which / heads() * out_heads + which % heads(); }
  __device__ int64_t lse_at(int which) const { return lse_of(out_head(which)); }
  __device__ int64_t lse_of(int out_head) const { return part.lse_at(q, 0, out_head); }

  // How many keys, from the first on, causality lets a query see; and how many tiles of `size` keys they fill.
  __device__ int seen(int query) const { return min(past + query + 1, keys); }
  __device__ int key_tiles(int query, int size) const { return (seen(query) + size - 1) / size; }
  // The first query that sees a key.
  __device__ int first_query(int key) const { return max(0, key - past); }

  // The row of the first key of a query's document. Queries past the end count as the last one.
  __device__ int first_key(int which, int query) const {
    if (!kDocuments || !starts) return 0;
    const int64_t row = min(query, s - 1);
    return static_cast<int>(key_positions.before(starts[row * q.b + which / heads()]));
  }
  // True if the query's document begins after this key.
  __device__ bool hides(int which, int query, int key) const { return kDocuments && key < first_key(which, query); }
  // Of the `tiles` tiles of `size` keys that causality allows, the first that queries from this one on need. Queries
  // that see no key get the last tile, masked, so that no kernel needs to handle zero tiles.
  __device__ int first_key_tile(int which, int query, int size, int tiles) const {
    return kDocuments ? min(first_key(which, query) / size, tiles - 1) : 0;
  }
  // The end of the tiles of `size` queries, from tile `first` on, that see keys up to this one: found by binary search,
  // as document starts ascend. At least one tile is left.
  __device__ int query_tiles(int which, int key, int first, int size) const {
    int end = (s + size - 1) / size;
    if constexpr (kDocuments)
      for (int least = first + 1; least < end;) {
        const int middle = (least + end) / 2;
        if (hides(which, middle * size, key)) end = middle;
        else least = middle + 1;
      }
    return end;
  }

  // The dropout square (kernels/philox.h) that contains the probability for this query and key.
  __device__ int64_t dropout_square(int which, int query, int key) const {
    const int64_t row = dropout.sample(which / heads()) * dropout.total_heads + dropout.first_head + which % heads();
    const int64_t pairs = dropout_pairs(dropout.seq_length);
    return (row * pairs + dropout_pair(dropout.keys.at(key))) * pairs + dropout_pair(dropout.positions.at(query));
  }
};

// A mask of the elements that dropout keeps among this lane's sums in 16 rows and 8 kBlocks columns (tensor_core.cuh):
// bit 4 n + e for sums[n][e]. Rows are queries and columns keys, or vice versa; both begin at multiples of 16. A square
// covers the lane's two rows in one column and in the column 8 further on. Columns may jump (PositionMap) at a multiple
// of 16. The loop is not unrolled because the generator is long.
template <bool kRowsAreQueries, int kBlocks, class Args>
__device__ inline uint64_t kept_by_dropout(const Args& a, int which, int first_row, int first_column) {
  static_assert(kBlocks <= 16 && kBlocks % 2 == 0);
  constexpr int kNextKey = kRowsAreQueries ? 4 : 2, kNextQuery = kRowsAreQueries ? 2 : 4;  // bit distances
  const int lane = threadIdx.x % 32, row = first_row + lane / 4, column = first_column + lane % 4 * 2;
  const DropoutArgs& dropout = a.dropout;
  const int64_t first = kRowsAreQueries ? a.dropout_square(which, row, column) : a.dropout_square(which, column, row);
  const PositionMap& columns = kRowsAreQueries ? dropout.keys : dropout.positions;
  // For the squares of these columns: the distance to the next, the number before a jump, and how many it skips.
  const int stride = kRowsAreQueries ? static_cast<int>(dropout_pairs(dropout.seq_length)) : 1;
  const int split = static_cast<int>(columns.split), jump = static_cast<int>(columns.jump) / 2;
  const int before = first_column < split ? (split - first_column) / 2 : 8 * kBlocks;
  uint64_t kept = 0;
#pragma unroll 1
  for (int i = 0; i < kBlocks; ++i) {
    const int pair = i / 2 * 8 + i % 2;
    const int64_t steps = pair < before ? pair : pair + jump;
    const PhiloxWords words =
        philox4x32<kDropoutRounds>(static_cast<uint64_t>(first + steps * stride), dropout.site, dropout.seed);
    const uint32_t four = (words.w[0] >= dropout.threshold ? 1u : 0u) |
                          (words.w[1] >= dropout.threshold ? 1u << kNextKey : 0u) |
                          (words.w[2] >= dropout.threshold ? 1u << kNextQuery : 0u) |
                          (words.w[3] >= dropout.threshold ? 1u << (kNextKey + kNextQuery) : 0u);
    kept |= uint64_t{four} << pair;
  }
  return kept;
}
__device__ inline float dropout_scale(const DropoutArgs& dropout, uint64_t kept, int i) {
  return kept >> i & 1 ? dropout.kept : 0.0f;
}

template <int kBlocks>
__device__ inline void apply_dropout(float (&x)[kBlocks][4], const DropoutArgs& dropout, uint64_t kept) {
#pragma unroll
  for (int i = 0; i < 4 * kBlocks; ++i) x[i / 4][i % 4] *= dropout_scale(dropout, kept, i);
}

// In a warp's tile of 16 rows that begins at this row and column, sets the scores of keys that their query does not see
// to `value`. Rows are either queries or keys; rows past the last key are not masked, as they are unused.
template <bool kRowsAreQueries, int kBlocks, class Args>
__device__ inline void mask_unseen(float (&x)[kBlocks][4], const Args& a, int which, int first_row, int first_column,
                                   float value) {
  const int lane = threadIdx.x % 32, row = first_row + lane / 4, column = first_column + lane % 4 * 2;
  // In each of this lane's two rows, relative to its first column: the first key that the query does not see, or the
  // first query that sees the key.
  const int edge[2] = {(kRowsAreQueries ? a.seen(row) : row - a.past) - column,
                       (kRowsAreQueries ? a.seen(row + 8) : row + 8 - a.past) - column};
#pragma unroll
  for (int n = 0; n < kBlocks; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if ((8 * n + e % 2 >= edge[e / 2]) == kRowsAreQueries) x[n][e] = value;
  if constexpr (Args::kDocuments) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at_row = row + e / 2 * 8, at_column = column + 8 * n + e % 2;
        if (kRowsAreQueries ? a.hides(which, at_row, at_column) : a.hides(which, at_column, at_row)) x[n][e] = value;
      }
  }
}

inline constexpr float kLog2E = 1.4426950408889634f;

// The online softmax (Milakov, Gimelshein 2018) of a lane's two queries among 16 rows of scores.
template <bool kDocuments>
struct OnlineSoftmax {
  // Without documents every query sees the first key, so after the first tile the maximum is finite. With them it
  // is finite from the start, because -infinity - -infinity would be NaN.
  static constexpr float kNone = kDocuments ? -FLT_MAX : -INFINITY;
  float max[2] = {kNone, kNone}, total[2] = {};  // of raw scores; this lane's part of the sum
  float factor[2];                               // rescales the sums of the tiles before the latest

  // Turns a tile's raw scores into probabilities, relative to the largest score so far.
  template <int kBlocks>
  __device__ void to_probabilities(float (&scores)[kBlocks][4], float to_log2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = max[half];
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) largest = fmaxf(largest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      factor[half] = power_of_2((max[half] - largest) * to_log2);
      max[half] = largest;
      const float offset = largest * to_log2;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[n][e] = power_of_2(scores[n][e] * to_log2 - offset);
          sum += scores[n][e];
        }
      total[half] = total[half] * factor[half] + sum;
    }
  }
  template <int kBlocks>
  __device__ void rescale(float (&sums)[kBlocks][4]) const {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[n][e] *= factor[e / 2];
  }
  // After the last tile: for this lane's queries, `first` and first + 8, stores the log-sum-exp to lse[query] if
  // query < s, and sets `factor` to normalise their sums: 0 for a query that has seen no key.
  __device__ void finish(float* lse, int first, int s, float scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = total[half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      factor[half] = kDocuments && sum == 0 ? 0.0f : 1.0f / sum;
      const int query = first + 8 * half;
      if (threadIdx.x % 4 == 0 && query < s) lse[query] = max[half] * scale + logf(sum);
    }
  }
};

// Calls f.template operator()<64, kDocuments>(), or with 80, 96 or 128: the head sizes that kernels are compiled for
// (flash_attention_has).
template <class F>
void dispatch_head(const AttentionArgs& args, F&& f) {
  const auto of = [&]<int kD>() {
    if (args.documents.starts) f.template operator()<kD, true>();
    else f.template operator()<kD, false>();
  };
  switch (args.d()) {
    case 64: return of.template operator()<64>();
    case 80: return of.template operator()<80>();
    case 96: return of.template operator()<96>();
    case 128: return of.template operator()<128>();
    default: fail("attention has no kernel for heads of " + std::to_string(args.d()) + " columns");
  }
}

}  // namespace trivet
