// Layer and RMS normalisation of rows. A row is read three times, but only once from memory: it stays in the L1 cache.
#include <cmath>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/vector.h"

namespace trivet::TRIVET_CPU {
namespace {

// kCentered: LayerNorm; else RMSNorm, with neither mean nor beta.
template <bool kCentered, class T>
void forward_row(const T* x, const T* gamma, const T* beta, float eps, int64_t h, T* y, float* mean, float& rstd) {
  float mu = 0;
  if constexpr (kCentered) *mean = mu = sum_over(h, [=](auto at) { return at.load(x); }) / static_cast<float>(h);
  const float variance = sum_over(h,
                                  [=](auto at) {
                                    const Floats d = at.load(x) - mu;
                                    return d * d;
                                  }) /
                         static_cast<float>(h);
  const float r = 1.0f / std::sqrt(variance + eps);
  for_vectors(h, [=](auto at) {
    if constexpr (kCentered) at.store(y, (at.load(x) - mu) * r * at.load(gamma) + at.load(beta));
    else at.store(y, at.load(x) * r * at.load(gamma));
  });
  rstd = r;
}

// dgamma, dbeta: this thread's partial sums. dx may be dy or residual: each element is read before it is written.
template <bool kCentered, bool kResidual, class T>
void backward_row(const T* dy, const T* x, const T* gamma, float mean, float rstd, const T* residual, int64_t h, T* dx,
                  float* dgamma, float* dbeta) {
  LaneSum g_sum, gx_sum;
  for_sum_vectors(h, [&](auto at, int k) {
    const Floats g = at.load(dy) * at.load(gamma), xhat = (at.load(x) - mean) * rstd;
    if constexpr (kCentered) g_sum.add(k, g);  // 0 in lanes without an element, where gamma is 0
    gx_sum.add(k, g * xhat);
  });
  const float g_mean = kCentered ? g_sum.total() / static_cast<float>(h) : 0;
  const float gx_mean = gx_sum.total() / static_cast<float>(h);
  for_vectors(h, [=](auto at) {
    const Floats d = at.load(dy), xhat = (at.load(x) - mean) * rstd;
    const Floats gradient = rstd * (d * at.load(gamma) - g_mean - xhat * gx_mean);
    at.store(dgamma, at.load(dgamma) + d * xhat);
    if constexpr (kCentered) at.store(dbeta, at.load(dbeta) + d);
    if constexpr (kResidual) at.store(dx, at.load(residual) + gradient);
    else at.store(dx, gradient);
  });
}

// Offsets of a norm's rows, in elements. A token has one row per head, or, without heads, a single row.
struct RowPlaces {
  const HeadRows &x, &y;
  const HeadsLayout of_x, of_y;
  const int64_t tokens = of_x.s * of_x.b, heads = of_x.heads(), h = of_x.d;

  RowPlaces(const op::NormRows& rows, const Tensor& x, const Tensor& y)
      : x(rows.x), y(rows.y), of_x(rows.x.of(x)), of_y(rows.y.of(y)) {}

  // Calls f(row, its offset in x, its offset in y).
  template <class F>
  void for_each(int64_t token, const F& f) const {
    const int64_t position = token / of_x.b, entry = token % of_x.b;
    for (int64_t head = 0; head < heads; ++head)
      f(token * heads + head, x.first + of_x.at(position, entry, head), y.first + of_y.at(position, entry, head));
  }
};

}  // namespace

void Kernels::compute(const op::LayernormForward& op) {
  const RowPlaces rows(op.rows, op.x, op.y);
  const int64_t h = rows.h;
  dispatch_float(op.x.dtype, [&]<class T>() {
    const auto loop = [&]<bool kCentered>() {
      for_rows(threads_, rows.tokens, rows.heads * h, [&](int64_t token) {
        rows.for_each(token, [&](int64_t r, int64_t x, int64_t y) {
          forward_row<kCentered>(op.x.as<T>() + x, op.gamma.as<T>(), kCentered ? op.beta.as<T>() : nullptr, op.eps, h,
                                 op.y.as<T>() + y, kCentered ? op.mean.as<float>() + r : nullptr,
                                 op.rstd.as<float>()[r]);
        });
      });
    };
    if (op.mean) loop.template operator()<true>();
    else loop.template operator()<false>();
  });
}

void Kernels::compute(const op::LayernormBackward& op) {
  const RowPlaces rows(op.rows, op.x, op.dy);
  // Parts of their own, and not one per thread: sums have the same bits with any number of threads.
  constexpr int64_t kMostParts = 32;
  const int64_t h = rows.h, whole = std::max<int64_t>(rows.tokens, 1);
  const int64_t tokens_of_part = std::max(rows_per_grain(rows.heads * h), (whole + kMostParts - 1) / kMostParts);
  const int64_t parts = (whole + tokens_of_part - 1) / tokens_of_part;
  std::vector<float> partials(static_cast<size_t>(parts * 2 * h));  // per part, dgamma and then dbeta
  dispatch_float(op.x.dtype, [&]<class T>() {
    const auto on_part = [&](int64_t part) {
      const Range tokens{part * tokens_of_part, std::min((part + 1) * tokens_of_part, rows.tokens)};
      float* const dg = partials.data() + part * 2 * h;
      const auto loop = [&]<bool kCentered, bool kResidual>() {
        for (int64_t token = tokens.begin; token < tokens.end; ++token)
          rows.for_each(token, [&](int64_t r, int64_t x, int64_t y) {
            backward_row<kCentered, kResidual>(op.dy.as<T>() + y, op.x.as<T>() + x, op.gamma.as<T>(),
                                               kCentered ? op.mean.as<float>()[r] : 0, op.rstd.as<float>()[r],
                                               kResidual ? op.residual.as<T>() + y : nullptr, h, op.dx.as<T>() + y, dg,
                                               dg + h);
          });
      };
      if (op.mean && op.residual) loop.template operator()<true, true>();
      else if (op.mean) loop.template operator()<true, false>();
      else if (op.residual) loop.template operator()<false, true>();
      else loop.template operator()<false, false>();
    };
    parallel_for(threads_, parts, 1, [&](Range some, int) {
      for (int64_t part = some.begin; part < some.end; ++part) on_part(part);
    });
  });
  for (int64_t part = 0; part < parts; ++part) {
    const float* const dg = partials.data() + part * 2 * h;
    for (int64_t c = 0; c < h; ++c) op.dgamma.as<float>()[c] += dg[c];
    for (int64_t c = 0; op.dbeta && c < h; ++c) op.dbeta.as<float>()[c] += dg[h + c];
  }
}

}  // namespace trivet::TRIVET_CPU
