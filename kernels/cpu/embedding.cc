// Token and position embeddings.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/op_checks.h"

namespace trivet {

void CpuOps::embedding_forward(Tensor tokens, Tensor table, int64_t first_row, Tensor out, Stream& stream) {
  constexpr const char* kOp = "embedding_forward";
  shapes::expect_float(kOp, "table", table);
  const int64_t n = tokens.numel(), h = table.cols(), table_rows = table.rows();
  shapes::expect_vector(kOp, "tokens", tokens, DType::i32, n);
  shapes::expect_matrix(kOp, "out", out, table.dtype, n, h);
  stream.run({kOp, Category::compute}, [=, threads = threads_] {
    const size_t row_bytes = static_cast<size_t>(h * size_of(table.dtype));
    parallel_for(threads, n, rows_per_grain(h), [&](Range rows, int) {
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        std::byte* const to = static_cast<std::byte*>(out.data) + static_cast<size_t>(r) * row_bytes;
        const int64_t row = tokens.as<int32_t>()[r] - first_row;
        if (row >= 0 && row < table_rows)
          std::memcpy(to, static_cast<const std::byte*>(table.data) + static_cast<size_t>(row) * row_bytes, row_bytes);
        else std::memset(to, 0, row_bytes);
      }
    });
  });
}

void CpuOps::embedding_backward(Tensor tokens, Tensor dout, int64_t first_row, Tensor dtable, Stream& stream) {
  constexpr const char* kOp = "embedding_backward";
  shapes::check_embedding_backward(tokens, dout, dtable);
  const int64_t n = tokens.numel(), h = dout.cols(), table_rows = dtable.rows();
  stream.run({kOp, Category::compute}, [=, threads = threads_] {
    dispatch_float(dout.dtype, [&]<class T>() {
      // Cut by columns: each thread adds all tokens in order, so equal tokens need no care.
      const int64_t grain = std::max<int64_t>(32, (rows_per_grain(n) + 31) / 32 * 32);
      parallel_for(threads, h, grain, [&](Range columns, int) {
        for (int64_t r = 0; r < n; ++r) {
          const int64_t row = tokens.as<int32_t>()[r] - first_row;
          if (row < 0 || row >= table_rows) continue;
          const T* const from = dout.as<T>() + r * h + columns.begin;
          float* const to = dtable.as<float>() + row * h + columns.begin;
          for_vectors(columns.size(), [=](auto at) { at.store(to, at.load(to) + at.load(from)); });
        }
      });
    });
  });
}

void CpuOps::position_forward(Tensor x, Tensor positions, const Dropout& dropout, Tensor out, Stream& stream) {
  constexpr const char* kOp = "position_forward";
  shapes::check_position_forward(x, positions, dropout, out);
  const int64_t s = x.shape[0], b = x.shape[1], h = x.shape[2];
  stream.run({kOp, Category::compute}, [=, threads = threads_] {
    dispatch_float(x.dtype, [&]<class T>() {
      parallel_for(threads, s * b, rows_per_grain(h), [&](Range rows, int) {
        for (int64_t r = rows.begin; r < rows.end; ++r) {
          const T* const in = x.as<T>() + r * h;
          const T* const position = positions.as<T>() + r / b * h;
          T* const to = out.as<T>() + r * h;
          dropout_row(dropout, dropout_row_index(dropout, r, b, h), h,
                      [=](auto at, auto scale) { at.store(to, (at.load(in) + at.load(position)) * scale); });
        }
      });
    });
  });
}

void CpuOps::position_backward(Tensor dout, const Dropout& dropout, Tensor dx, Tensor dpositions, Stream& stream) {
  constexpr const char* kOp = "position_backward";
  shapes::check_position_backward(dout, dropout, dx, dpositions);
  const int64_t s = dout.shape[0], b = dout.shape[1], h = dout.shape[2];
  stream.run({kOp, Category::compute}, [=, threads = threads_] {
    dispatch_float(dout.dtype, [&]<class T>() {
      parallel_for(threads, s, rows_per_grain(b * h), [&](Range part, int) {
        for (int64_t position = part.begin; position < part.end; ++position) {
          float* const sum = dpositions.as<float>() + position * h;
          for (int64_t r = position * b; r < (position + 1) * b; ++r) {
            const T* const in = dout.as<T>() + r * h;
            T* const to = dx.as<T>() + r * h;
            dropout_row(dropout, dropout_row_index(dropout, r, b, h), h, [=](auto at, auto scale) {
              const Floats gradient = at.load(in) * scale;
              at.store(sum, at.load(sum) + gradient);
              at.store(to, gradient);
            });
          }
        }
      });
    });
  });
}

}  // namespace trivet
