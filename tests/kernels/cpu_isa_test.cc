// Instruction sets: which ones this machine supports, and the problem reported for the others. The op tests
// run under each of them (tests/CMakeLists.txt).
#include "kernels/cpu_isa.h"

#include <cmath>

#include "tests/support/message_of.h"
#include "tests/support/ops_fixture.h"

namespace trivet::test {
namespace {

TEST(CpuIsas, AreUsableOrRefused) {
  const auto usable = usable_cpu_isas();
  ASSERT_FALSE(usable.empty());
  EXPECT_EQ(usable.front(), CpuIsa::portable);
  EXPECT_TRUE(std::ranges::is_sorted(usable));
  EXPECT_EQ(best_cpu_isa(), usable.back());
  for (size_t i = 0; i < kCpuIsaNames.size(); ++i) {
    const auto isa = static_cast<CpuIsa>(i);
    if (std::ranges::count(usable, isa)) {
      EXPECT_EQ(cpu_isa_problem(isa), "");
      EXPECT_NE(create_cpu_ops(1, isa), nullptr);
    } else {
      EXPECT_TRUE(throws_naming([&] { create_cpu_ops(1, isa); },
                                {"CPU kernels for " + std::string(name_of(isa)) + ": ", cpu_isa_problem(isa)}));
    }
  }
}

// Without the instruction set under test, this process's op tests would run under another.
TEST(CpuIsas, TheOneUnderTestIsHere) {
  if (const std::string problem = cpu_isa_problem(tested_cpu_isa()); !problem.empty())
    GTEST_SKIP() << name_of(tested_cpu_isa()) << " cannot be tested: " << problem;
}

TEST(CpuIsas, AgreeWithinRounding) {
  Tensors tensors;
  const auto stream = tensors.device().create_compute_stream();
  const int64_t m = 37, n = 70, k = 45;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor a = tensors.uniform(dtype, {m, k}), b = tensors.uniform(dtype, {k, n});
    Values first;
    for (const CpuIsa isa : usable_cpu_isas()) {
      const Tensor c = tensors.poisoned(dtype, {m, n});
      create_cpu_ops(1, isa)->run(op::Matmul{.a = a, .b = b, .c = c}, *stream);
      if (first.empty()) first = values(c);
      EXPECT_TRUE(near(c, first, summed(dtype, first, k, 2))) << name_of(isa);
    }
  }
}

// The order of additions is fixed, so results agree bit for bit between two instruction sets, and between layouts.
TEST(CpuIsas, AddTheTermsOfAGemmInTheOrderTheyAreSaidTo) {
  // given: a k that spans several blocks and an odd remainder
  Tensors tensors;
  const auto stream = tensors.device().create_compute_stream();
  const int64_t m = 14, n = 35, k = 4401;
  const auto expected = [&](const Tensor& a, const Tensor& b, int64_t i, int64_t j, bool in_pairs) {
    const auto value = [](const Tensor& x, int64_t at) {
      return x.dtype == DType::f32 ? x.as<float>()[at] : static_cast<float>(x.as<bf16>()[at]);
    };
    float sum = 0;
    for (int64_t pair = 0; pair < k; pair += 2)
      for (const int64_t at : {pair + in_pairs, pair + !in_pairs})  // in pairs, the odd term comes first
        if (at < k) sum = std::fma(value(a, i * k + at), value(b, at * n + j), sum);
    return sum;
  };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor a = tensors.uniform(dtype, {m, k}), b = tensors.uniform(dtype, {k, n});
    for (const CpuIsa isa : usable_cpu_isas()) {
      const bool fused = isa != CpuIsa::portable, tiles = isa == CpuIsa::amx && dtype == DType::bf16;
      if (!fused || tiles) continue;  // the others round or order terms differently
      const Tensor c = tensors.poisoned(DType::f32, {m, n});
      create_cpu_ops(1, isa)->run(op::Matmul{.a = a, .b = b, .c = c}, *stream);
      for (int64_t i = 0; i < m; i += 3)
        for (int64_t j = 0; j < n; j += 7)
          ASSERT_EQ(c.as<float>()[i * n + j], expected(a, b, i, j, dtype == DType::bf16 && isa == CpuIsa::avx512_bf16))
              << name_of(isa) << ' ' << name_of(dtype) << " at " << i << ", " << j;
    }
  }
}

}  // namespace
}  // namespace trivet::test
