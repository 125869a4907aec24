// The base of every op test: a back end (the CPU with a number of threads, or CUDA), a stream, and host tensors.
#pragma once

#include <tuple>

#include "kernels/ops.h"
#include "tests/support/mirrored_ops.h"
#include "tests/support/near.h"
#include "tests/support/tensors.h"

namespace trivet {

inline void PrintTo(DType dtype, std::ostream* out) { *out << name_of(dtype); }  // in the names of cases

}  // namespace trivet

namespace trivet::test {

// Parameters: the type T of activations and weights, and the number of threads, or kOnCuda, which is skipped if
// there is no GPU.
class OpsTest : public testing::TestWithParam<std::tuple<DType, int>> {
 protected:
  void SetUp() override {
    if (!ops) GTEST_SKIP() << "no GPU, or a CPU without the instructions";
  }
  const DType dtype = std::get<0>(GetParam());
  const int threads = std::get<1>(GetParam());
  Tensors tensors;
  std::unique_ptr<Ops> ops = create_test_ops(threads);
  std::unique_ptr<Stream> stream = tensors.device().create_compute_stream();
};

inline auto back_ends() { return testing::Values(1, 2, 3, kOnCuda); }
inline auto all_types_and_back_ends() {
  return testing::Combine(testing::Values(DType::f32, DType::bf16), back_ends());
}

inline std::string case_name(const testing::TestParamInfo<std::tuple<DType, int>>& info) {
  const int threads = std::get<1>(info.param);
  return std::string(name_of(std::get<0>(info.param))) +
         (threads == kOnCuda ? "_cuda" : "_threads_" + std::to_string(threads));
}

// For near(): results that are sums of n terms of magnitude about `scale`, summed in fp32 and rounded to `dtype`.
inline auto summed(DType dtype, const Values& expected, int64_t n, double scale = 1) {
  return [=, &expected](int64_t i) {
    return tolerance(DType::f32, n, scale) + tolerance(dtype, 1, std::abs(expected[static_cast<size_t>(i)]));
  };
}

// The central difference of f at x[i], for any f(Values) -> double.
template <class F>
double numeric_gradient(const F& f, Values x, size_t i, double step = 1e-5) {
  const double at = x[i];
  x[i] = at + step;
  const double above = f(x);
  x[i] = at - step;
  return (above - f(x)) / (2 * step);
}

inline double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace trivet::test
