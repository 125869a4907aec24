// Token embeddings, and the gradient of position embeddings.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/dropout.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel_for.h"

namespace trivet::TRIVET_CPU {

void Kernels::compute(const op::EmbeddingForward& op) {
  const int64_t n = op.tokens.numel(), h = op.table.cols(), table_rows = op.table.rows();
  const size_t row_bytes = static_cast<size_t>(h * size_of(op.table.dtype));
  for_rows(threads_, n, h, [&](int64_t r) {
    std::byte* const to = static_cast<std::byte*>(op.out.data) + static_cast<size_t>(r) * row_bytes;
    const int64_t row = op.tokens.as<int32_t>()[r] - op.first_row;
    if (row >= 0 && row < table_rows)
      std::memcpy(to, static_cast<const std::byte*>(op.table.data) + static_cast<size_t>(row) * row_bytes, row_bytes);
    else std::memset(to, 0, row_bytes);
  });
}

void Kernels::compute(const op::EmbeddingBackward& op) {
  const int64_t n = op.tokens.numel(), h = op.dout.cols(), table_rows = op.dtable.rows();
  dispatch_float(op.dout.dtype, [&]<class T>() {
    // Split by columns: each thread adds all tokens in order, so repeated tokens cause no races.
    const int64_t grain = std::max<int64_t>(32, (rows_per_grain(n) + 31) / 32 * 32);
    parallel_for(threads_, h, grain, [&](Range columns, int) {
      for (int64_t r = 0; r < n; ++r) {
        const int64_t row = op.tokens.as<int32_t>()[r] - op.first_row;
        if (row < 0 || row >= table_rows) continue;
        const T* const from = op.dout.as<T>() + r * h + columns.begin;
        float* const to = op.dtable.as<float>() + row * h + columns.begin;
        for_vectors(columns.size(), [=](auto at) { at.store(to, at.load(to) + at.load(from)); });
      }
    });
  });
}

void Kernels::compute(const op::PositionBackward& op) {
  const int64_t s = op.dout.shape[0], b = op.dout.shape[1], h = op.dout.shape[2];
  dispatch_float(op.dout.dtype, [&]<class T>() {
    for_rows(threads_, s, b * h, [&](int64_t position) {
      float* const sum = op.dpositions.as<float>() + position * h;
      for (int64_t r = position * b; r < (position + 1) * b; ++r) {
        const T* const in = op.dout.as<T>() + r * h;
        T* const to = op.dx.as<T>() + r * h;
        dropout_row(op.dropout, dropout_row_index(op.dropout, r, b, h), h, [=](auto at, auto scale) {
          const Floats gradient = at.load(in) * scale;
          at.store(sum, at.load(sum) + gradient);
          at.store(to, gradient);
        });
      }
    });
  });
}

}  // namespace trivet::TRIVET_CPU
