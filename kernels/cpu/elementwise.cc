// Activations, add, convert; bias or position, dropout and residual; sums over rows; fill and clear.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/piece.h"
#include "kernels/base/fp8.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/vector.h"

namespace trivet::TRIVET_CPU {
namespace {

constexpr int64_t kGrain = piece(16384, 256);  // fewest elements worth a thread

// out[i] = f(in[i], …), one vector at a time.
template <class In, class Out, class F, class... Inputs>
void map(int threads, int64_t grain, const F& f, const Tensor& out, const Inputs&... in) {
  parallel_for(threads, out.numel(), grain, [&](Range part, int) {
    const auto run = [&](Out* to, const auto*... from) {
      for_vectors(part.size(), [=](auto at) { at.store(to, f(at.load(from)...)); });
    };
    run(static_cast<Out*>(out.data) + part.begin, static_cast<const In*>(in.data) + part.begin...);
  });
}

// This back end's arithmetic, for the formulas of kernels/activation.h.
struct Math {
  static Floats exp(Floats x) { return TRIVET_CPU::exp(x); }
  static Floats exp_in_range(Floats x) { return TRIVET_CPU::exp_in_range(x); }
  static Floats clamp(Floats x, float low, float high) { return at_most(at_least(x, low), high); }
  template <class V>
  static Floats quotient(V a, Floats b) {
    return a / b;
  }
};
constexpr int64_t kActivationGrain = piece(8192, 256);  // fewest elements worth a thread

// sum[c] += the sum over rows r of x[r * stride + c], for at most kColumns columns c. Groups of rows are summed
// separately first, so that long fp32 sums lose less precision.
constexpr int64_t kColumns = piece(512, 64), kGroup = 64;

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

// out = residual + (x + added) * mask, each [s, b, h]. added [n / repeats, h]: each row applies to `repeats` rows of x,
// or, if `repeats` is 0, the only row applies to all; with ids, row ids[r] applies to row r. Null terms are left out.
void dropout_add(int threads, const Tensor& x, const Tensor& added, int64_t repeats, const Tensor& residual,
                 const Dropout& dropout, const Tensor& out, const Tensor& ids = {}) {
  const int64_t b = x.shape[1], h = x.shape[2];
  dispatch_float(x.dtype, [&]<class T>() {
    for_rows(threads, x.rows(), h, [&](int64_t r) {
      const T *const in = x.as<T>() + r * h, *const beside = residual ? residual.as<T>() + r * h : nullptr;
      const int64_t row = ids ? ids.as<int32_t>()[r] : repeats > 0 ? r / repeats : 0;
      const T* const addend = added ? added.as<T>() + row * h : nullptr;
      T* const to = out.as<T>() + r * h;
      const auto store = [&](const auto& sum) {
        dropout_row(dropout, dropout_row_index(dropout, r, b, h), h,
                    [to, sum](auto at, auto scale) { at.store(to, sum(at, scale)); });
      };
      if (addend && beside)
        store([=](auto at, auto scale) { return at.load(beside) + (at.load(in) + at.load(addend)) * scale; });
      else if (addend) store([=](auto at, auto scale) { return (at.load(in) + at.load(addend)) * scale; });
      else if (beside) store([=](auto at, auto scale) { return at.load(beside) + at.load(in) * scale; });
      else store([=](auto at, auto scale) { return at.load(in) * scale; });
    });
  });
}

}  // namespace

void Kernels::compute(const op::ActivationForward& op) {
  const int64_t f = op.y.cols();
  dispatch_float(op.x.dtype, [&]<class T>() {
    const auto plain = [&]<class Formulas>(Formulas) {
      map<T, T>(
          threads_, kActivationGrain, [](Floats x) { return Formulas::value(x); }, op.y, op.x);
    };
    const auto gated = [&]<class Formulas>(Formulas) {
      for_rows(threads_, op.y.rows(), 2 * f, [&](int64_t r) {
        const T *const gate = op.x.as<T>() + r * 2 * f, *const up = gate + f;
        T* const y = op.y.as<T>() + r * f;
        for_vectors(f, [=](auto at) { at.store(y, Formulas::value(at.load(gate)) * at.load(up)); });
      });
    };
    with_formulas<Math>(op.kind, plain, gated);
  });
}

void Kernels::compute(const op::ActivationBackward& op) {
  const int64_t f = op.dy.cols();
  dispatch_float(op.x.dtype, [&]<class T>() {
    const auto plain = [&]<class Formulas>(Formulas) {
      map<T, T>(
          threads_, kActivationGrain, [](Floats x, Floats dy) { return dy * Formulas::slope(x); }, op.dx, op.x, op.dy);
    };
    const auto gated = [&]<class Formulas>(Formulas) {
      for_rows(threads_, op.dy.rows(), 2 * f, [&](int64_t r) {
        const T *const gate = op.x.as<T>() + r * 2 * f, *const up = gate + f, *const dy = op.dy.as<T>() + r * f;
        T *const d_gate = op.dx.as<T>() + r * 2 * f, *const d_up = d_gate + f;
        for_vectors(f, [=](auto at) {
          const Floats d = at.load(dy);
          const auto act = Formulas::value_and_slope(at.load(gate));
          at.store(d_gate, d * at.load(up) * act.slope);
          at.store(d_up, d * act.value);
        });
      });
    };
    with_formulas<Math>(op.kind, plain, gated);
  });
}

void Kernels::compute(const op::ColumnSum& op) {
  const int64_t n = op.x.rows(), columns = op.x.cols();
  dispatch_float(op.x.dtype, [&]<class T>() {
    // Split by columns, so that the order of additions does not depend on the number of threads.
    const int64_t grain = std::max<int64_t>(32, (rows_per_grain(n) + 31) / 32 * 32);
    parallel_for(threads_, columns, grain, [&](Range part, int) {
      for (int64_t c = part.begin; c < part.end; c += kColumns)
        column_sum_tile(op.x.as<T>() + c, n, columns, std::min(kColumns, part.end - c), op.sum.as<float>() + c);
    });
  });
}

void Kernels::compute(const op::BiasDropoutAdd& op) {
  dropout_add(threads_, op.x, op.bias, 0, op.residual, op.dropout, op.out);
}

void Kernels::compute(const op::PositionForward& op) {
  dropout_add(threads_, op.x, op.positions, op.x.shape[1], {}, op.dropout, op.out, op.ids);
}

void Kernels::compute(const op::DropoutBackward& op) {
  if (op.dropout.probability == 0 && op.dx.data == op.dout.data) return;
  dropout_add(threads_, op.dout, {}, 0, {}, op.dropout, op.dx);
}

void Kernels::compute(const op::Fill& op) {
  const auto fill_as = [&]<class T>(T element) {
    parallel_for(threads_, op.x.numel(), kGrain, [&](Range part, int) {
      T* const begin = static_cast<T*>(op.x.data) + part.begin;
      // memset can write large blocks without reading them first.
      if (op.value == 0 && !std::signbit(op.value))
        std::memset(static_cast<void*>(begin), 0, sizeof(T) * static_cast<size_t>(part.size()));
      else std::fill(begin, begin + part.size(), element);
    });
  };
  switch (op.x.dtype) {
    case DType::f32: return fill_as(op.value);
    case DType::bf16: return fill_as(bf16(op.value));
    case DType::i32: return fill_as(static_cast<int32_t>(op.value));
    case DType::i64: return fill_as(static_cast<int64_t>(op.value));
    case DType::u8: return fill_as(static_cast<uint8_t>(op.value));
    case DType::e4m3: return fill_as(E4m3::encode(op.value));
    case DType::e5m2: return fill_as(E5m2::encode(op.value));
  }
}

void Kernels::compute(const op::Clear& op) {
  for (const Tensor& x : op.xs)
    parallel_for(threads_, x.bytes(), kGrain, [&](Range part, int) {
      std::memset(static_cast<std::byte*>(x.data) + part.begin, 0, static_cast<size_t>(part.size()));
    });
}

void Kernels::compute(const op::Convert& op) {
  if (op.from.dtype == op.to.dtype) {
    parallel_for(threads_, op.from.bytes(), kGrain, [&](Range part, int) {
      std::memcpy(static_cast<std::byte*>(op.to.data) + part.begin, static_cast<std::byte*>(op.from.data) + part.begin,
                  static_cast<size_t>(part.size()));
    });
    return;
  }
  dispatch_float(op.from.dtype, [&]<class From>() {
    using To = std::conditional_t<std::is_same_v<From, float>, bf16, float>;
    map<From, To>(
        threads_, kGrain, [](Floats x) { return x; }, op.to, op.from);
  });
}

void Kernels::compute(const op::Add& op) {
  dispatch_float(op.a.dtype, [&]<class T>() {
    map<T, T>(
        threads_, kGrain, [](Floats a, Floats b) { return a + b; }, op.out, op.a, op.b);
  });
}

}  // namespace trivet::TRIVET_CPU
