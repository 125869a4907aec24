// Bias, dropout and residual; sums over rows; fill, convert, add.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/vector.h"
#include "kernels/op_checks.h"

namespace trivet {
namespace {

constexpr int64_t kGrain = 16384;  // elements worth a thread

// sum[c] += over rows of x[r * stride + c], for c < kColumns at most. Groups of rows are summed on their own first:
// long sums in fp32 lose less that way.
constexpr int64_t kColumns = 512, kGroup = 64;

template <class T>
void column_sum_tile(const T* x, int64_t rows, int64_t stride, int64_t columns, float* sum) {
  float total[kColumns] = {};
  for (int64_t begin = 0; begin < rows; begin += kGroup) {
    float group[kColumns] = {};
    for (int64_t r = begin; r < std::min(rows, begin + kGroup); ++r) {
      const T* const row = x + r * stride;
      for_vectors(columns, [&](auto at) { at.store(group, at.load(group) + at.load(row)); });
    }
    for (int64_t c = 0; c < columns; ++c) total[c] += group[c];
  }
  for (int64_t c = 0; c < columns; ++c) sum[c] += total[c];
}

}  // namespace

void CpuOps::column_sum(Tensor x, Tensor sum, Stream& stream) {
  constexpr const char* kOp = "column_sum";
  shapes::expect_float(kOp, "x", x);
  const int64_t n = x.rows(), columns = x.cols();
  shapes::expect_vector(kOp, "sum", sum, DType::f32, columns);
  stream.run({kOp, Category::compute}, [=, threads = threads_] {
    dispatch_float(x.dtype, [&]<class T>() {
      // Cut by columns: the order of additions does not depend on the number of threads.
      const int64_t grain = std::max<int64_t>(32, (rows_per_grain(n) + 31) / 32 * 32);
      parallel_for(threads, columns, grain, [&](Range part, int) {
        for (int64_t c = part.begin; c < part.end; c += kColumns)
          column_sum_tile(x.as<T>() + c, n, columns, std::min(kColumns, part.end - c), sum.as<float>() + c);
      });
    });
  });
}

void CpuOps::bias_dropout_add(Tensor x, Tensor bias, Tensor residual, const Dropout& dropout, Tensor out,
                              Stream& stream) {
  constexpr const char* kOp = "bias_dropout_add";
  shapes::expect_float(kOp, "x", x);
  shapes::expect_rank(kOp, "x", x, x.dtype, 3);
  const int64_t b = x.shape[1], h = x.shape[2];
  if (bias) shapes::expect_vector(kOp, "bias", bias, x.dtype, h);
  shapes::expect_like(kOp, "residual", residual, x);
  shapes::expect_like(kOp, "out", out, x);
  shapes::expect_dropout(kOp, dropout);
  stream.run({kOp, Category::compute}, [=, threads = threads_] {
    dispatch_float(x.dtype, [&]<class T>() {
      parallel_for(threads, x.rows(), rows_per_grain(h), [&](Range rows, int) {
        for (int64_t r = rows.begin; r < rows.end; ++r) {
          const T* const in = x.as<T>() + r * h;
          const T* const added = bias ? bias.as<T>() : nullptr;
          const T* const beside = residual.as<T>() + r * h;
          T* const to = out.as<T>() + r * h;
          const int64_t index = dropout_row_index(dropout, r, b, h);
          if (added)
            dropout_row(dropout, index, h, [=](auto at, auto scale) {
              at.store(to, at.load(beside) + (at.load(in) + at.load(added)) * scale);
            });
          else
            dropout_row(dropout, index, h,
                        [=](auto at, auto scale) { at.store(to, at.load(beside) + at.load(in) * scale); });
        }
      });
    });
  });
}

void CpuOps::dropout_backward(Tensor dout, const Dropout& dropout, Tensor dx, Stream& stream) {
  constexpr const char* kOp = "dropout_backward";
  shapes::expect_float(kOp, "dout", dout);
  shapes::expect_rank(kOp, "dout", dout, dout.dtype, 3);
  const int64_t b = dout.shape[1], h = dout.shape[2];
  shapes::expect_like(kOp, "dx", dx, dout);
  shapes::expect_dropout(kOp, dropout);
  if (dropout.probability == 0 && dx.data == dout.data) return;
  stream.run({kOp, Category::compute}, [=, threads = threads_] {
    dispatch_float(dout.dtype, [&]<class T>() {
      parallel_for(threads, dout.rows(), rows_per_grain(h), [&](Range rows, int) {
        for (int64_t r = rows.begin; r < rows.end; ++r) {
          const T* const in = dout.as<T>() + r * h;
          T* const to = dx.as<T>() + r * h;
          dropout_row(dropout, dropout_row_index(dropout, r, b, h), h,
                      [=](auto at, auto scale) { at.store(to, at.load(in) * scale); });
        }
      });
    });
  });
}

void CpuOps::fill(Tensor x, float value, Stream& stream) {
  constexpr const char* kOp = "fill";
  shapes::expect_vector(kOp, "x", x, x.dtype, x.numel());
  const auto fill_as = [&]<class T>(T element) {
    stream.run({kOp, Category::compute}, [=, threads = threads_] {
      parallel_for(threads, x.numel(), kGrain, [&](Range part, int) {
        T* const begin = x.as<T>() + part.begin;
        // memset knows how to write much memory without reading it first.
        if (value == 0 && !std::signbit(value))
          std::memset(static_cast<void*>(begin), 0, sizeof(T) * static_cast<size_t>(part.size()));
        else std::fill(begin, begin + part.size(), element);
      });
    });
  };
  switch (x.dtype) {
    case DType::f32: return fill_as(value);
    case DType::bf16: return fill_as(bf16(value));
    case DType::i32: return fill_as(static_cast<int32_t>(value));
    case DType::i64: return fill_as(static_cast<int64_t>(value));
    case DType::u8: return fill_as(static_cast<uint8_t>(value));
  }
}

void CpuOps::clear(std::span<const Tensor> xs, Stream& stream) {
  stream.run({"clear", Category::compute}, [all = std::vector<Tensor>(xs.begin(), xs.end()), threads = threads_] {
    for (const Tensor& x : all)
      parallel_for(threads, x.bytes(), kGrain, [&](Range part, int) {
        std::memset(static_cast<std::byte*>(x.data) + part.begin, 0, static_cast<size_t>(part.size()));
      });
  });
}

void CpuOps::convert(Tensor from, Tensor to, Stream& stream) {
  constexpr const char* kOp = "convert";
  shapes::expect_vector(kOp, "to", to, to.dtype, from.numel());
  if (from.dtype == to.dtype) {
    shapes::expect_vector(kOp, "from", from, from.dtype, from.numel());
    stream.run({kOp, Category::compute}, [=, threads = threads_] {
      parallel_for(threads, from.bytes(), kGrain, [&](Range part, int) {
        std::memcpy(static_cast<std::byte*>(to.data) + part.begin, static_cast<std::byte*>(from.data) + part.begin,
                    static_cast<size_t>(part.size()));
      });
    });
    return;
  }
  shapes::expect_float(kOp, "from", from);
  shapes::expect_float(kOp, "to", to);
  stream.run({kOp, Category::compute}, [=, threads = threads_] {
    dispatch_float(from.dtype, [&]<class From>() {
      using To = std::conditional_t<std::is_same_v<From, float>, bf16, float>;
      parallel_for(threads, from.numel(), kGrain, [&](Range part, int) {
        const From* const in = from.as<From>() + part.begin;
        To* const out = to.as<To>() + part.begin;
        for_vectors(part.size(), [=](auto at) { at.store(out, at.load(in)); });
      });
    });
  });
}

void CpuOps::add(Tensor a, Tensor b, Tensor out, Stream& stream) {
  constexpr const char* kOp = "add";
  shapes::check_add(a, b, out);
  stream.run({kOp, Category::compute}, [=, threads = threads_] {
    dispatch_float(a.dtype, [&]<class T>() {
      parallel_for(threads, a.numel(), kGrain, [&](Range part, int) {
        const T* const x = a.as<T>() + part.begin;
        const T* const y = b.as<T>() + part.begin;
        T* const sum = out.as<T>() + part.begin;
        for_vectors(part.size(), [=](auto at) { at.store(sum, at.load(x) + at.load(y)); });
      });
    });
  });
}

}  // namespace trivet
