// Instruction sets: which can be used here, and what is said of one that cannot. The tests of ops run under each of
// them (tests/CMakeLists.txt).
#include "kernels/cpu_isa.h"

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

// Otherwise the tests of this process would be of another one.
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

}  // namespace
}  // namespace trivet::test
