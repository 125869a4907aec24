// Fixture of the attention tests: cases, views in several memory layouts, runs of both passes, and the comparison with
// the reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>

#include "kernels/base/arena.h"
#include "kernels/ops.h"
#include "tests/support/attention_reference.h"
#include "tests/support/mirrored_ops.h"
#include "tests/support/near.h"

namespace trivet::test {

// The implementation under test. On the CPU, the case sets the number of threads. On a Hopper GPU, cuda uses Hopper's
// kernels where they support the case, and cuda_older the kernels for all GPUs.
enum class By { cpu, cuda, cuda_older };
inline void PrintTo(By by, std::ostream* out) {
  constexpr const char* kNames[] = {"cpu", "cuda", "cuda_older"};
  *out << kNames[static_cast<size_t>(by)];
}

// Memory layout of queries, keys and values. The last two leave gaps: 16 bytes, so that heads are aligned, but not to
// multiples of their size; or one element, so that nothing is aligned.
enum class Lie { in_groups, apart, one_behind_the_other, with_gaps, unaligned };
inline constexpr Lie kDense[] = {Lie::in_groups, Lie::apart, Lie::one_behind_the_other};
inline constexpr Lie kLies[] = {Lie::in_groups, Lie::apart, Lie::one_behind_the_other, Lie::with_gaps, Lie::unaligned};

class AttentionTest : public testing::TestWithParam<By> {
 protected:
  void SetUp() override {
    if (GetParam() != By::cpu && cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    if (GetParam() == By::cpu && !cpu_isa_problem(tested_cpu_isa()).empty()) GTEST_SKIP() << "no such CPU";
  }
  static bool for_tensor_cores(const AttentionCase& z) { return z.dtype == DType::bf16 && z.d % 16 == 0 && z.d >= 64; }
  static bool takes(const AttentionCase& z) {
    // The older kernels differ from Hopper's only in these cases.
    return GetParam() != By::cuda_older || for_tensor_cores(z);
  }
  static std::unique_ptr<Ops> ops_for(const AttentionCase& z) {
    if (GetParam() == By::cpu) return create_test_ops(z.threads);
    return create_test_ops(kOnCuda, {.hopper_attention = GetParam() != By::cuda_older});
  }
  struct Tensors {
    QkvViews qkv;
    Tensor out, lse, dout;
    QkvViews dqkv;
  };

  static double value(const Tensor& x, int64_t i) {
    return x.dtype == DType::f32 ? x.as<float>()[i] : static_cast<float>(x.as<bf16>()[i]);
  }
  static Vector values(const Tensor& x) {
    Vector v(static_cast<size_t>(x.numel()));
    for (int64_t i = 0; i < x.numel(); ++i) v[static_cast<size_t>(i)] = value(x, i);
    return v;
  }
  static std::vector<char> bytes(const Tensor& x) {
    return {static_cast<char*>(x.data), static_cast<char*>(x.data) + x.bytes()};
  }
  Tensor poisoned(DType dtype, Shape shape) {
    const Tensor x = arena.allocate(dtype, shape);
    for (int64_t i = 0; i < x.numel(); ++i) {
      if (dtype == DType::f32) x.as<float>()[i] = std::numeric_limits<float>::quiet_NaN();
      else x.as<bf16>()[i] = bf16(std::numeric_limits<float>::quiet_NaN());
    }
    return x;
  }
  Tensor drawn(DType dtype, Shape shape, float deviation) {
    const Tensor x = arena.allocate(dtype, shape);
    std::normal_distribution<float> normal(0, deviation);
    for (int64_t i = 0; i < x.numel(); ++i) {
      if (dtype == DType::f32) x.as<float>()[i] = normal(random);
      else x.as<bf16>()[i] = bf16(normal(random));
    }
    return x;
  }

  // [s, b], or null.
  Tensor starts_of(const AttentionCase& z) {
    if (z.starts.empty()) return {};
    const Tensor starts = arena.allocate(DType::i32, {z.s, z.b});
    std::copy(z.starts.begin(), z.starts.end(), starts.as<int32_t>());
    return starts;
  }

  // ---- views

  QkvViews poisoned_views(const AttentionCase& z, Lie lie) {
    const int64_t kv = z.groups(), d = z.d;
    const auto apart = [&](int64_t heads) { return heads_view(poisoned(z.dtype, {z.s, z.b, heads * d}), heads, kv); };
    const auto gaps = [&](int64_t heads, int64_t gap) {
      const int64_t members = heads / kv, width = d + gap;
      const Tensor memory = poisoned(z.dtype, {z.s, z.b, heads * width + gap});
      HeadsView view{memory, gap, HeadsLayout::in_groups(z.s, z.b, kv, members, d, members * width)};
      view.layout.member = width, view.layout.entry = memory.shape[2], view.layout.position = z.b * memory.shape[2];
      return view;
    };
    const int64_t gap = 16 / size_of(z.dtype);
    switch (lie) {
      case Lie::in_groups: return qkv_views(poisoned(z.dtype, {z.s, z.b, z.qkv_width()}), z.heads, kv);
      case Lie::apart: return {apart(z.heads), apart(kv), apart(kv)};
      case Lie::with_gaps: return {gaps(z.heads, gap), gaps(kv, gap), gaps(kv, gap)};
      case Lie::unaligned: return {gaps(z.heads, 1), gaps(kv, 1), gaps(kv, 1)};
      case Lie::one_behind_the_other: break;
    }
    const Tensor all = poisoned(z.dtype, {z.s, z.b, z.qkv_width()});
    const auto part = [&](int64_t first, int64_t members) {
      HeadsView view{all, first * d, HeadsLayout::in_groups(z.s, z.b, kv, members, d, members * d)};
      view.layout.entry = z.qkv_width(), view.layout.position = z.b * z.qkv_width();
      return view;
    };
    return {part(0, z.members()), part(z.heads, 1), part(z.heads + kv, 1)};
  }

  // Calls f(index in a Vector with the reference's layout, memory, index in that memory) for all elements of the views.
  template <class F>
  static void for_each_element(const AttentionCase& z, const QkvViews& views, const F& f) {
    const AttentionReference reference{z};
    for (int64_t position = 0; position < z.s; ++position)
      for (int64_t batch = 0; batch < z.b; ++batch)
        for (int64_t head = 0; head < z.heads; ++head)
          for (int64_t part = 0; part < 3; ++part) {
            const HeadsView& view = part == 0 ? views.q : part == 1 ? views.k : views.v;
            const int64_t at = view.first + view.layout.at(position, batch, part == 0 ? head : head / z.members());
            for (int64_t c = 0; c < z.d; ++c) f(reference.at(position, batch, head, part, c), view.memory, at + c);
          }
  }
  static Vector values(const AttentionCase& z, const QkvViews& views) {
    Vector v(static_cast<size_t>(z.s * z.b * z.qkv_width()));
    for_each_element(z, views, [&](size_t i, const Tensor& memory, int64_t at) { v[i] = value(memory, at); });
    return v;
  }
  QkvViews placed(const AttentionCase& z, Lie lie, const Vector& values) {
    const QkvViews views = poisoned_views(z, lie);
    for_each_element(z, views, [&](size_t i, const Tensor& memory, int64_t at) {
      if (z.dtype == DType::f32) memory.as<float>()[at] = static_cast<float>(values[i]);
      else memory.as<bf16>()[at] = bf16(static_cast<float>(values[i]));
    });
    return views;
  }
  Vector drawn_values(const AttentionCase& z, float deviation) {
    std::normal_distribution<float> normal(0, deviation);
    Vector v(static_cast<size_t>(z.s * z.b * z.qkv_width()));
    for (double& x : v) x = normal(random);
    return v;
  }

  // ---- runs

  Tensors run(const AttentionCase& z, const QkvViews& qkv, const Tensor& dout, const QkvViews& dqkv) {
    const Tensors x{qkv, poisoned(z.dtype, {z.s, z.b, z.heads * z.d}), poisoned(DType::f32, {z.b, z.heads, z.s}), dout,
                    dqkv};
    const auto ops = ops_for(z);
    const DocumentStarts documents{.starts = starts_of(z)};
    ops->run(op::AttentionForward{.qkv = qkv, .out = x.out, .lse = x.lse, .dropout = z.dropout, .documents = documents},
             *stream);
    ops->run(op::AttentionBackward{.dout = dout,
                                   .qkv = qkv,
                                   .out = x.out,
                                   .lse = x.lse,
                                   .dqkv = dqkv,
                                   .dropout = z.dropout,
                                   .documents = documents},
             *stream);
    stream->synchronize();
    return x;
  }
  Tensors run(const AttentionCase& z, const Vector& qkv, const Tensor& dout, Lie lie = Lie::in_groups) {
    return run(z, placed(z, lie, qkv), dout, poisoned_views(z, lie));
  }
  Tensors run(const AttentionCase& z, float deviation = 1.0f, Lie lie = Lie::in_groups) {
    return run(z, drawn_values(z, deviation), drawn(z.dtype, {z.s, z.b, z.heads * z.d}, 1.0f), lie);
  }

  void expect_near(const char* what, const AttentionCase& z, const Vector& found, const Vector& wanted,
                   double tolerance) {
    for (size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found[i], wanted[i], tolerance)
          << what << " at " << i << ": s " << z.s << " b " << z.b << " heads " << z.heads << " kv heads " << z.groups()
          << " d " << z.d << " " << name_of(z.dtype) << " dropout " << z.dropout.probability
          << (z.starts.empty() ? "" : " with documents");
  }
  // Nothing was written outside the views.
  static void expect_gaps_untouched(const AttentionCase& z, const QkvViews& views) {
    for (const Tensor* memory : {&views.q.memory, &views.k.memory, &views.v.memory}) {
      std::vector<bool> inside(static_cast<size_t>(memory->numel()));
      for_each_element(z, views, [&](size_t, const Tensor& of, int64_t at) {
        if (of.data == memory->data) inside[static_cast<size_t>(at)] = true;
      });
      for (int64_t i = 0; i < memory->numel(); ++i)
        ASSERT_TRUE(inside[static_cast<size_t>(i)] || std::isnan(value(*memory, i))) << "element " << i;
    }
  }
  static double largest(const Vector& x) {
    double most = 0;
    for (double v : x) most = std::max(most, std::abs(v));
    return most;
  }

  void expect_reference(const AttentionCase& z, float deviation = 1.0f, Lie lie = Lie::in_groups) {
    if (!takes(z)) return;
    SCOPED_TRACE(static_cast<int>(lie));
    const Tensors x = run(z, deviation, lie);
    const AttentionReference reference{z};
    Vector out, lse;
    const Vector qkv = values(z, x.qkv);
    reference.forward(qkv, out, lse);
    const Vector dqkv = reference.backward(qkv, values(x.dout));
    // An absolute error in a score is a relative error in its probability. The type's rounding adds to it: that of
    // the results, and that of probabilities and their gradients before they are summed over s.
    const double of_score = tolerance(DType::f32, z.d, 1 + largest(lse));
    const double of_type = tolerance(z.dtype, z.d);
    expect_near("lse", z, values(x.lse), lse, of_score);
    expect_near("out", z, values(x.out), out, (of_score + of_type) * largest(out));
    expect_near("dqkv", z, values(z, x.dqkv), dqkv, (of_score + of_type) * largest(dqkv));
    expect_gaps_untouched(z, x.dqkv);
  }

  std::unique_ptr<Device> device = create_cpu_device();
  std::unique_ptr<Stream> stream = device->create_compute_stream();
  Arena arena{*device, "attention test"};
  std::mt19937 random{7};
};

inline int64_t first_sample = 3;
inline const Dropout kDropout{.probability = 0.2f,
                              .seed = 11,
                              .site = 70'005,
                              .first_sample = Tensor{&first_sample, DType::i64, {1}},
                              .seq_length = 600,
                              .positions = {},
                              .first_head = 2,
                              .total_heads = 7};

}  // namespace trivet::test
