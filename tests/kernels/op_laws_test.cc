// Properties of every op: its check refuses what its contract does not allow, naming the op; inputs stay unchanged;
// outputs are written completely, and do not depend on their previous contents.
#include <cstring>
#include <gtest/gtest.h>
#include <omp.h>

#include "tests/support/op_samples.h"
#include "tests/support/tensors.h"

namespace trivet::test {
namespace {

// Calls f(tensor) for each tensor of an op, as an argument with its role, including those in lists, which are then
// rebuilt.
template <class Op, class F>
void for_each_tensor(Op& op, const F& f) {
  for_each_field(op, [&]<class T>(T& field) {
    if constexpr (is_argument<T>) f(field);
    if constexpr (is_list<T>) {
      std::vector elements(field.begin(), field.end());
      for (auto& element : elements) {
        if constexpr (is_argument<std::remove_reference_t<decltype(element)>>) f(element);
        else for_each_tensor(element, f);
      }
      field = std::move(elements);
    }
  });
}

class OpLaws : public testing::Test {
 protected:
  // Calls f(op) for a sample of every op.
  template <class F>
  void for_each_op(const F& f) {
    for (const AnyOp& sample : samples.all())
      std::visit(
          [&](const auto& op) {
            SCOPED_TRACE(op.kSpan.name);
            f(op);
          },
          sample);
  }
  // Changes the tensors of the op one at a time, by change(tensor), and expects check() to throw, naming the op,
  // whenever change returns true.
  template <class Op, class F>
  void expect_refused(const Op& op, const F& change) {
    int count = 0;
    Op base = op;
    for_each_tensor(base, [&](const auto&) { ++count; });
    for (int which = 0; which < count; ++which) {
      Op other = op;
      int tensor = 0;
      bool refuses = false;
      for_each_tensor(other, [&](auto& each) {
        if (tensor++ == which) refuses = change(each);
      });
      if (refuses) {
        EXPECT_TRUE(throws_naming([&] { check_arguments(other); }, {std::string(Op::kSpan.name) + ": "}))
            << "tensor " << which;
      }
    }
  }

  Tensors tensors;
  OpSamples samples{[this](DType type, Shape shape) {
    return type == DType::f32 ? tensors.uniform(type, shape) : tensors.integers(type, shape, 0, 1);
  }};
};

TEST_F(OpLaws, ANullTensorIsRefusedUnlessItIsOptional) {
  for_each_op([&](const auto& op) {
    EXPECT_NO_THROW(check_arguments(op));
    expect_refused(op, []<class T>(T& tensor) {
      tensor = Tensor{.data = nullptr, .dtype = tensor.dtype, .shape = tensor.shape};
      return !T::optional;
    });
  });
}

TEST_F(OpLaws, AnotherTypeIsRefused) {
  for_each_op([&]<class Op>(const Op& op) {
    if constexpr (std::is_same_v<Op, op::Fill> || std::is_same_v<Op, op::Clear>) return;  // accept any type
    expect_refused(op, [](Tensor& tensor) {
      if (!tensor) return false;
      tensor.dtype = tensor.dtype == DType::u8 ? DType::i64 : DType::u8;
      return true;
    });
  });
}

TEST_F(OpLaws, AnotherShapeIsRefused) {
  for_each_op([&]<class Op>(const Op& op) {
    if constexpr (std::is_same_v<Op, op::Fill> || std::is_same_v<Op, op::Clear>) return;  // accept any shape
    expect_refused(op, [](Tensor& tensor) {
      if (!tensor) return false;
      for (int i = 0; i < tensor.shape.rank; ++i) ++tensor.shape.dims[static_cast<size_t>(i)];
      const bool any = std::is_same_v<Op, op::SumOfSquares> || std::is_same_v<Op, op::FindNonFinite> ||
                       std::is_same_v<Op, op::CountLabels> || std::is_same_v<Op, op::Amax>;
      if (any && tensor.dtype == DType::f32) return tensor.numel() == 2;  // x and numbers: any size; others: one number
      return tensor.numel() != 9 * 3 * 13;                                // head views may lie in a larger tensor
    });
  });
}

TEST_F(OpLaws, WhatIsReadStaysAndWhatIsWrittenIsWrittenInWhole) {
  const auto ops = create_cpu_ops(2);
  const auto stream = tensors.device().create_compute_stream();
  for_each_op([&]<class Op>(const Op& op) {
    if constexpr (std::is_same_v<Op, op::AttentionBackward>) return;  // skips the gaps in its views: attention_test
    // given: a copy of everything per run, with outputs prefilled differently
    std::vector<Tensor> results[2];
    for (int run = 0; run < 2; ++run) {
      Op mine = op;
      std::vector<std::pair<Tensor, Tensor>> read;
      for_each_tensor(mine, [&]<class T>(T& tensor) {
        if (!tensor) return;
        const Tensor before = tensor;
        tensor = tensors.copy(before);
        if (T::role == Role::out) std::memset(tensor.data, run ? 0xff : 0, static_cast<size_t>(tensor.bytes()));
        if (T::role == Role::in) read.emplace_back(tensor, before);
        else results[run].push_back(tensor);
      });
      // when
      ops->run(mine, *stream);
      // then
      for (const auto& [now, before] : read) EXPECT_TRUE(same_bits(now, before));
    }
    for (size_t i = 0; i < results[0].size(); ++i) EXPECT_TRUE(same_bits(results[0][i], results[1][i])) << i;
  });
}

// As under OMP_THREAD_LIMIT or OMP_DYNAMIC: the threads that there are do the work of all.
TEST(Threads, AnOpIsCompleteIfOpenMpGrantsFewerThanRequested) {
  Tensors tensors;
  const auto ops = create_cpu_ops(4);
  const auto stream = tensors.device().create_compute_stream();
  const Tensor a = tensors.uniform(DType::f32, {256, 300}), b = tensors.uniform(DType::f32, {300, 256});
  std::vector<std::vector<Tensor>> results;
  const int levels = omp_get_max_active_levels();
  for (const int most : {levels, 0}) {  // 0: every team has one thread
    omp_set_max_active_levels(most);
    const auto fresh = [&](Shape shape) {
      const Tensor tensor = tensors.uniform(DType::f32, shape);
      std::memset(tensor.data, 0xff, static_cast<size_t>(tensor.bytes()));
      return tensor;
    };
    const Tensor product = fresh({256, 256}), copy = fresh({256, 300}), sums = fresh({300});
    ops->run(op::Matmul{.a = a, .b = b, .c = product}, *stream);
    ops->run(op::Convert{a, copy}, *stream);
    ops->run(op::ColumnSum{a, sums}, *stream);
    results.push_back({product, copy, sums});
  }
  omp_set_max_active_levels(levels);
  for (size_t i = 0; i < results[0].size(); ++i) EXPECT_TRUE(same_bits(results[0][i], results[1][i])) << i;
}

}  // namespace
}  // namespace trivet::test
