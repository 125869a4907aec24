// Reference attention in double arithmetic, straight from the definition: for small sizes.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/ops.h"
#include "kernels/philox.h"

namespace trivet::test {

using Vector = std::vector<double>;

struct AttentionCase {
  int64_t s, b, heads, d;
  DType dtype = DType::f32;
  Dropout dropout{};
  int threads = 2;
  int64_t kv_heads = 0;           // 0: equal to heads
  std::vector<int32_t> starts{};  // [s, b] document starts; empty: no documents

  int64_t groups() const { return kv_heads == 0 ? heads : kv_heads; }
  int64_t members() const { return heads / groups(); }
  int64_t qkv_width() const { return (heads + 2 * groups()) * d; }
};

// 1 / (1 - p) if Dropout's contract keeps a probability, else 0.
inline double keep_factor(const Dropout& dropout, int64_t batch, int64_t head, int64_t query_row, int64_t key_row) {
  if (dropout.probability == 0) return 1;
  const int64_t query = dropout.positions.at(query_row), key = dropout.keys.at(key_row);
  // In each group of 16 positions, 0 to 7 are paired with 8 to 15.
  const int64_t pairs = (dropout.seq_length + 15) / 16 * 8;
  const auto pair = [](int64_t position) { return position / 16 * 8 + position % 8; };
  const int64_t row = (*dropout.first_sample.as<int64_t>() + batch) * dropout.total_heads + dropout.first_head + head;
  const int64_t square = (row * pairs + pair(key)) * pairs + pair(query);
  const auto words = philox4x32<7>(static_cast<uint64_t>(square), dropout.site, dropout.seed);
  const int word = (query % 16 >= 8 ? 2 : 0) + (key % 16 >= 8 ? 1 : 0);
  const bool keep = words.w[word] >= dropout_threshold(dropout.probability);
  return keep ? 1.0 / (1.0 - static_cast<double>(dropout.probability)) : 0.0;
}

// [s, b]: the start of each position's document. Lengths cycle through `lengths`; batch entry n begins with the n-th.
inline std::vector<int32_t> document_starts(int64_t s, int64_t b, const std::vector<int64_t>& lengths) {
  std::vector<int32_t> starts(static_cast<size_t>(s * b));
  for (int64_t entry = 0; entry < b; ++entry)
    for (int64_t start = 0, end, n = entry; start < s; start = end, ++n) {
      end = std::min(s, start + lengths[static_cast<size_t>(n) % lengths.size()]);
      for (int64_t i = start; i < end; ++i) starts[static_cast<size_t>(i * b + entry)] = static_cast<int32_t>(start);
    }
  return starts;
}

// The definition. Vectors are tensors: one holds queries, keys and values (qkv_views in kernels/heads_view.h).
struct AttentionReference {
  const AttentionCase& z;

  // For a query head: the index of its query (part 0), or of the key or value that it attends to (1, 2).
  size_t at(int64_t position, int64_t batch, int64_t head, int64_t part, int64_t column) const {
    const int64_t group = (position * z.b + batch) * z.groups() + head / z.members();
    const int64_t unit = part == 0 ? head % z.members() : z.members() + part - 1;
    return static_cast<size_t>((group * (z.members() + 2) + unit) * z.d + column);
  }
  size_t out_at(int64_t position, int64_t batch, int64_t head, int64_t column) const {
    return static_cast<size_t>(((position * z.b + batch) * z.heads + head) * z.d + column);
  }
  bool sees(int64_t batch, int64_t i, int64_t j) const {
    return z.starts.empty() || j >= z.starts[static_cast<size_t>(i * z.b + batch)];
  }
  Vector scores(const Vector& qkv, int64_t batch, int64_t head, int64_t i) const {
    const double* query = &qkv[at(i, batch, head, 0, 0)];
    const double scale = 1 / std::sqrt(static_cast<double>(z.d));
    Vector row;
    for (int64_t j = 0; j <= i; ++j)
      row.push_back(!sees(batch, i, j)
                        ? -std::numeric_limits<double>::infinity()
                        : scale * std::inner_product(query, query + z.d, &qkv[at(j, batch, head, 1, 0)], 0.0));
    return row;
  }
  static double log_sum_exp(const Vector& row) {
    const double largest = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (double x : row) sum += std::exp(x - largest);
    return largest + std::log(sum);
  }
  // y += factor * x. Takes pointers for speed: these are the inner loops, and many tests compute the reference.
  static void add(int64_t n, double factor, const double* x, double* y) {
    for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
  }
  template <class F>
  void for_each_row(F&& f) const {
    for (int64_t batch = 0; batch < z.b; ++batch)
      for (int64_t head = 0; head < z.heads; ++head)
        for (int64_t i = 0; i < z.s; ++i) f(batch, head, i);
  }

  void forward(const Vector& qkv, Vector& out, Vector& lse) const {
    out.assign(static_cast<size_t>(z.s * z.b * z.heads * z.d), 0.0);
    lse.assign(static_cast<size_t>(z.b * z.heads * z.s), 0.0);
    for_each_row([&](int64_t batch, int64_t head, int64_t i) {
      const Vector row = scores(qkv, batch, head, i);
      const double log_sum = log_sum_exp(row);
      lse[static_cast<size_t>((batch * z.heads + head) * z.s + i)] = log_sum;
      for (int64_t j = 0; j <= i; ++j) {
        if (!sees(batch, i, j)) continue;
        const double p = std::exp(row[static_cast<size_t>(j)] - log_sum) * keep_factor(z.dropout, batch, head, i, j);
        add(z.d, p, &qkv[at(j, batch, head, 2, 0)], &out[out_at(i, batch, head, 0)]);
      }
    });
  }

  Vector backward(const Vector& qkv, const Vector& dout) const {
    Vector dqkv(qkv.size(), 0.0);
    const double scale = 1 / std::sqrt(static_cast<double>(z.d));
    for_each_row([&](int64_t batch, int64_t head, int64_t i) {
      const Vector row = scores(qkv, batch, head, i);
      const double log_sum = log_sum_exp(row);
      Vector p(row.size()), dp(row.size(), 0.0);
      double delta = 0;
      for (size_t j = 0; j < row.size(); ++j) {
        const auto key = static_cast<int64_t>(j);
        if (!sees(batch, i, key)) continue;  // p is 0
        const double keep = keep_factor(z.dropout, batch, head, i, key);
        const double *of_out = &dout[out_at(i, batch, head, 0)], *value = &qkv[at(key, batch, head, 2, 0)];
        p[j] = std::exp(row[j] - log_sum);
        dp[j] = keep * std::inner_product(of_out, of_out + z.d, value, 0.0);
        add(z.d, keep * p[j], of_out, &dqkv[at(key, batch, head, 2, 0)]);
        delta += p[j] * dp[j];
      }
      for (size_t j = 0; j < row.size(); ++j) {
        const auto key = static_cast<int64_t>(j);
        const double dscore = p[j] * (dp[j] - delta) * scale;
        const size_t of_query = at(i, batch, head, 0, 0), of_key = at(key, batch, head, 1, 0);
        add(z.d, dscore, &qkv[of_key], &dqkv[of_query]);
        add(z.d, dscore, &qkv[of_query], &dqkv[of_key]);
      }
    });
    return dqkv;
  }
};

}  // namespace trivet::test
