// GraphOps: replaying a whole segment has the same effect as its calls, and different segments never share a graph.
#include "kernels/graph_ops.h"

#include <gtest/gtest.h>
#include <numeric>
#include <set>

#include "tests/support/op_samples.h"
#include "tests/support/split_device.h"
#include "tests/support/tensors.h"

#ifdef TRIVET_EMULATED_GPU
#include "tests/emulation/runtime.h"
#endif

namespace trivet::test {
namespace {

// On the tests' stand-in for a GPU, and on a GPU if present.
class GraphOpsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const bool cuda = GetParam() == std::string("cuda");
    if (cuda && cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    device = cuda ? create_cuda_device(0) : create_split_device();
    ops = cuda ? create_cuda_ops(*device, {.gemm_candidates = 1}) : create_split_ops(*device, 1);
    graphs = std::make_unique<GraphOps>(*ops, *device);
    arena = std::make_unique<Arena>(*device, "graph test");
    stream = device->create_compute_stream();
  }

  Tensor on_device(const Tensor& host) {
    const Tensor t = arena->allocate(host.dtype, host.shape);
    device->copy_to_device(host.data, t, *stream);
    stream->synchronize();
    return t;
  }
  Tensor zeros(Shape shape, DType dtype = DType::f32) { return on_device(tensors.full(dtype, shape, 0)); }
  std::vector<float> floats(const Tensor& t) {
    std::vector<float> host(static_cast<size_t>(t.numel()));
    device->copy_to_host(t, host.data(), *stream);
    stream->synchronize();
    return host;
  }
  Ops& through() { return *graphs; }
  // A segment of two calls: x += step, twice.
  void add_twice(Tensor x, Tensor step) {
    through().run(op::Add{x, step, x}, *stream);
    through().run(op::Add{x, step, x}, *stream);
  }

  Tensors tensors;
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<GraphOps> graphs;
  std::unique_ptr<Arena> arena;
  TraceRow row{"compute"};
  std::unique_ptr<Stream> stream;
};

INSTANTIATE_TEST_SUITE_P(Devices, GraphOpsTest, testing::Values("split", "cuda"),
                         [](const auto& info) { return info.param; });

TEST_P(GraphOpsTest, TheSecondTimeIsCapturedAndEveryTimeCounts) {
  const Tensor x = zeros({5}), one = on_device(tensors.full(DType::f32, {5}, 1));
  for (int times = 1; times <= 4; ++times) {
    graphs->over(*stream, [&] { add_twice(x, one); });
    EXPECT_EQ(floats(x), std::vector<float>(5, static_cast<float>(2 * times)));
  }
  EXPECT_EQ(graphs->counts().graphs, 1);
  EXPECT_EQ(graphs->counts().launches, 3);
  EXPECT_EQ(graphs->counts().replayed, 6);
  EXPECT_EQ(graphs->counts().calls, 8);
}

#ifdef TRIVET_EMULATED_GPU
// A float of milliseconds loses precision over time (a step is 1 us after ten seconds, and half a millisecond after an
// hour and a half), so every ten seconds the span clock is anchored again.
TEST_P(GraphOpsTest, SpansKeepToTheHostsClockForLong) {
  if (GetParam() != std::string("cuda")) GTEST_SKIP() << "has the clock of the host";
  const Tensor x = zeros({5}), one = on_device(tensors.full(DType::f32, {5}, 1));
  std::vector<Span> spans;
  stream->synchronize();
  stream->set_trace_row(&row);
  const int64_t minute = 60'000'000'000, length = 100'000;
  const auto name = [](const Span& span) { return std::string(span.info.name); };
  for (int64_t ahead = 0; ahead < 300 * minute; ahead += ahead < minute ? 5'250'000'000 : 2 * ahead) {
    emulation::driver().clock_ahead_ns = ahead;
    const int64_t before = now_ns() + ahead;
    ops->run(op::Add{x, one, x}, *stream);
    stream->synchronize();
    const int64_t after = now_ns() + ahead;
    row.take(spans);
    ASSERT_FALSE(spans.empty());
    for (const Span& span : spans) {
      EXPECT_GE(span.start_ns, before - 2'000'000'000) << ahead;
      EXPECT_LE(span.end_ns, after + 2'000'000'000) << ahead;
    }
    for (int i = 0; i < 20; ++i) {
      stream->begin_phase({"length", Category::phase});
      stream->run({"advance", Category::host}, [] { emulation::driver().clock_ahead_ns += length; });
      stream->end_phase();
    }
    stream->synchronize();
    row.take(spans);
    EXPECT_EQ(std::ranges::count(spans, std::string("length"), name), 20);
    for (const Span& span : spans)
      EXPECT_GE(span.end_ns - span.start_ns, name(span) == "length" ? length - 5'000 : 0) << ahead;
  }
  emulation::driver().clock_ahead_ns = 0;
}
#endif

TEST_P(GraphOpsTest, OneGraphDropsWhatEachSampleIsToDrop) {
  const Tensor ones = on_device(tensors.full(DType::f32, {4, 2, 4}, 1)), y = zeros({4, 2, 4});
  const Dropout dropout{.probability = 0.5f, .seed = 1, .first_sample = zeros({1}, DType::i64), .seq_length = 4};
  std::set<std::vector<float>> masks;
  for (int64_t sample = 0; sample < 5; ++sample) {
    const Tensor number = tensors.number(sample);
    device->copy_to_device(number.data, dropout.first_sample, *stream);

    graphs->over(*stream, [&] {
      through().run(op::DropoutBackward{.dout = ones, .dropout = dropout, .dx = y}, *stream);
      through().run(op::Add{ones, y, y}, *stream);
    });

    const std::vector<float> found = floats(y);
    ops->run(op::DropoutBackward{.dout = ones, .dropout = dropout, .dx = y}, *stream);
    ops->run(op::Add{ones, y, y}, *stream);
    EXPECT_EQ(found, floats(y)) << sample;
    masks.insert(found);
  }
  EXPECT_EQ(graphs->counts().graphs, 1);
  EXPECT_EQ(graphs->counts().launches, 4);
  EXPECT_EQ(masks.size(), 5u);
}

TEST_P(GraphOpsTest, WhatElseIsQueuedCutsASegmentAndStandsInItsPlace) {
  const Tensor x = zeros({3}), one = on_device(tensors.full(DType::f32, {3}, 1));
  const HostBuffer ten(*device, 12), seen(*device, 36);
  std::fill_n(static_cast<float*>(ten.data()), 3, 10.0f);
  auto* const values = static_cast<float*>(seen.data());
  const auto side = device->create_side_stream(StreamPriority::normal);
  const auto computed = device->create_event(), copied = device->create_event();
  const auto copy_beside = [&](float* to) {
    device->copy_to_host(x, to, *side);
    side->synchronize();
  };
  stream->set_trace_row(&row);
  for (int i = 0; i < 3; ++i) {
    bool ran = false;
    graphs->over(*stream, [&] {
      add_twice(x, one);
      device->copy_to_host(x, values, *stream);
      add_twice(x, one);
      stream->record(*computed);
      side->wait(*computed);
      copy_beside(values + 3);
      side->record(*copied);
      stream->wait(*copied);
      add_twice(x, one);
      stream->synchronize();
      copy_beside(values + 6);
      {
        const ScopedPhase phase(*stream, {"phase", Category::phase});
        add_twice(x, one);
      }
      add_twice(x, one);
      ops->run(op::Add{x, one, x}, *stream);  // bypasses the graphs
      device->copy_to_device(ten.data(), x, *stream);
      add_twice(x, one);
      stream->run({"host"}, [&] { ran = true; });
      add_twice(x, one);
    });
    EXPECT_EQ(floats(x), std::vector<float>(3, 14));
    EXPECT_TRUE(ran);
    const float before = i == 0 ? 0 : 14;
    EXPECT_EQ(values[0], before + 2);
    EXPECT_EQ(values[3], before + 4);
    EXPECT_EQ(values[6], before + 6);
    EXPECT_EQ(graphs->counts().calls, 14 * (i + 1));
  }
  // All seven segments consist of the same two calls. The first segment was queued call by call.
  EXPECT_EQ(graphs->counts().graphs, 1);
  EXPECT_EQ(graphs->counts().launches, 20);

  // A graph launch records one span, within its phase.
  std::vector<Span> spans;
  stream->synchronize();
  row.take(spans);
  const auto count = [&](const std::string& name, const Span& inside) {
    return std::count_if(spans.begin(), spans.end(), [&](const Span& span) {
      return span.info.name == name && inside.start_ns <= span.start_ns && span.end_ns <= inside.end_ns;
    });
  };
  const Span always{.info = {}, .end_ns = std::numeric_limits<int64_t>::max()};
  EXPECT_EQ(count("graph", always), 20);
  EXPECT_EQ(count("phase", always), 3);
  EXPECT_EQ(count("add", always), 2 + 3);
  for (const Span& span : spans)
    if (span.info.category == Category::phase) {
      EXPECT_EQ(count("graph", span), 1);
    }
}

// Kernels, library GEMMs with their workspace, and the device's fills and copies.
TEST_P(GraphOpsTest, OperationsOfEveryKindRepeat) {
  constexpr DType T = DType::bf16;
  constexpr int64_t s = 8, b = 2, h = 16, vocab = 32;
  const auto uniform = [&](DType dtype, Shape shape) { return on_device(tensors.uniform(dtype, shape)); };
  const auto empty = [&](DType dtype, Shape shape) { return on_device(tensors.poisoned(dtype, shape)); };
  const Tensor tokens = on_device(tensors.integers(DType::i32, {s, b}, 0, vocab - 1));
  const Tensor table = uniform(T, {vocab, h}), gamma = uniform(T, {h}), beta = uniform(T, {h});
  const Tensor weight = uniform(T, {3 * h, h}), bias = uniform(T, {3 * h}), d_out = uniform(T, {s, b, h});
  const Tensor x = empty(T, {s, b, h}), norm = empty(T, {s, b, h}), out = empty(T, {s, b, h});
  const Tensor mean = empty(DType::f32, {s, b}), rstd = empty(DType::f32, {s, b}), lse = empty(DType::f32, {b, 2, s});
  const Tensor qkv = empty(T, {s, b, 3 * h}), d_qkv = empty(T, {s, b, 3 * h}), copy = empty(T, {s, b, h});
  const Tensor d_table = empty(DType::f32, {vocab, h}), d_weight = empty(DType::f32, {3 * h, h});
  const auto pass = [&](Ops& on) {
    on.run(op::Fill{d_table, 0}, *stream);
    on.run(op::Fill{d_weight, 0}, *stream);
    on.run(op::EmbeddingForward{.tokens = tokens, .table = table, .first_row = 0, .out = x}, *stream);
    on.run(
        op::LayernormForward{.x = x, .gamma = gamma, .beta = beta, .eps = 1e-5f, .y = norm, .mean = mean, .rstd = rstd},
        *stream);
    on.run(op::Matmul{.a = norm, .b = weight, .c = qkv, .transpose_b = true, .bias = bias}, *stream);
    const QkvViews views = qkv_views(qkv, 2, 2), d_views = qkv_views(d_qkv, 2, 2);
    on.run(op::AttentionForward{.qkv = views, .out = out, .lse = lse}, *stream);
    on.run(op::AttentionBackward{.dout = d_out, .qkv = views, .out = out, .lse = lse, .dqkv = d_views}, *stream);
    on.run(op::Matmul{.a = d_qkv, .b = norm, .c = d_weight, .transpose_a = true, .accumulate = true}, *stream);
    on.run(op::Convert{out, copy}, *stream);
    on.run(op::EmbeddingBackward{.tokens = tokens, .dout = d_out, .first_row = 0, .dtable = d_table}, *stream);
  };
  const auto results = [&] {
    std::vector<std::vector<std::byte>> bytes;
    for (const Tensor& t : {qkv, out, lse, d_qkv, copy, d_weight, d_table}) {
      bytes.emplace_back(static_cast<size_t>(t.bytes()));
      device->copy_to_host(t, bytes.back().data(), *stream);
      stream->synchronize();
    }
    return bytes;
  };
  pass(*ops);
  const auto expected = results();
  for (int i = 0; i < 3; ++i) {
    for (const Tensor& t : {x, norm, qkv, out, lse, d_qkv, copy})
      ops->run(op::Fill{t, std::numeric_limits<float>::quiet_NaN()}, *stream);
    graphs->over(*stream, [&] { pass(*graphs); });
    EXPECT_EQ(results(), expected) << "time " << i + 1;
  }
  EXPECT_EQ(graphs->counts().launches, 2);
}

TEST_P(GraphOpsTest, CallsOnOtherStreamsAndOutsideGoOnAsTheyAre) {
  const Tensor x = zeros({4}), y = zeros({4}), one = on_device(tensors.full(DType::f32, {4}, 1));
  const auto side = device->create_side_stream(StreamPriority::normal);
  for (int i = 1; i <= 3; ++i) {
    graphs->over(*stream, [&] {
      through().run(op::Add{y, one, y}, *side);
      through().run(op::Add{y, one, y}, *side);
    });
    side->synchronize();
    add_twice(x, one);
  }
  EXPECT_EQ(floats(x), std::vector<float>(4, 6));
  EXPECT_EQ(floats(y), std::vector<float>(4, 6));
  EXPECT_EQ(graphs->counts().calls, 0);
}

TEST_P(GraphOpsTest, ACallThatThrowsLeavesNothingBehind) {
  const Tensor x = zeros({4}), one = on_device(tensors.full(DType::f32, {4}, 1)), wrong = zeros({5});
  const auto broken = [&] {
    graphs->over(*stream, [&] {
      through().run(op::Add{x, one, x}, *stream);
      through().run(op::Add{x, wrong, x}, *stream);
    });
  };
  EXPECT_TRUE(throws_naming(broken, {"add", "[5]"}));
  EXPECT_TRUE(throws_naming(
      [&] {
        graphs->over(*stream, [&] {
          add_twice(x, one);  // must not be queued
          fail("something else");
        });
      },
      {"something else"}));
  EXPECT_EQ(floats(x), std::vector<float>(4, 1));
  graphs->over(*stream, [&] { add_twice(x, one); });
  EXPECT_EQ(floats(x), std::vector<float>(4, 3));
}

TEST_P(GraphOpsTest, WhatDoesNotFitInAnyMoreIsQueuedCallByCall) {
  GraphOps few(*ops, *device, 5);
  const Tensor x = zeros({4}), one = on_device(tensors.full(DType::f32, {4}, 1));
  for (int times = 0; times < 3; ++times)
    for (const int64_t length : {2, 3, 4})  // the third would bring the total to nine
      few.over(*stream, [&] {
        for (int64_t i = 0; i < length; ++i) static_cast<Ops&>(few).run(op::Add{x, one, x}, *stream);
      });
  EXPECT_EQ(floats(x), std::vector<float>(4, 27));
  EXPECT_EQ(few.counts().graphs, 2);
  EXPECT_EQ(few.counts().replayed, 2 * (2 + 3));
}

TEST_P(GraphOpsTest, ACaptureHasNothingButOperations) {
  const Tensor x = zeros({4}), one = on_device(tensors.full(DType::f32, {4}, 1));
  const auto event = device->create_event();
  EXPECT_THROW(device->capture(*stream, [&] { stream->synchronize(); }), Error);
  EXPECT_THROW(device->capture(*stream, [&] { device->deallocate(device->allocate(256), 256); }), Error);
  EXPECT_THROW(device->capture(*stream, [&] { fail("of its own"); }), Error);
  // The stream is unchanged, and the captured work did not run.
  const auto graph = device->capture(*stream, [&] { ops->run(op::Add{x, one, x}, *stream); });
  EXPECT_EQ(floats(x), std::vector<float>(4, 0));
  graph->launch(*stream);
  graph->launch(*stream);
  EXPECT_EQ(floats(x), std::vector<float>(4, 2));
}

TEST(GraphOps, WantADeviceThatHasGraphs) {
  const auto cpu = create_cpu_device();
  const auto ops = create_cpu_ops(1);
  EXPECT_TRUE(throws_naming([&] { GraphOps(*ops, *cpu); }, {"GraphOps needs a device that has graphs"}));
  const auto stream = cpu->create_compute_stream();
  EXPECT_THROW(cpu->capture(*stream, [] {}), Error);
}

// ---- any argument of any operation distinguishes two graphs

class Keys : public GraphOpsTest {
 protected:
  // Changes only one field; returns false if it cannot, because null tensors stay null.
  bool change(Tensor& t) {
    if (!t) return false;
    const Tensor copy = arena->allocate(t.dtype, t.shape);  // only the address differs
    ops->run(op::Convert{t, copy}, *stream);
    t = copy;
    return true;
  }
  template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  bool change(T& number) {
    if constexpr (std::is_enum_v<T>) number = static_cast<T>(static_cast<int>(number) + 1);
    else if constexpr (std::is_same_v<T, bool>) number = !number;
    else if constexpr (std::is_same_v<T, float>) number *= 1.5f;
    else ++number;
    return true;
  }
  // Queues the op twice in a segment, and returns the number of graphs launched so far.
  int64_t queue(const AnyOp& op) {
    graphs->over(*stream, [&] {
      for (int i = 0; i < 2; ++i) through().run(op, *stream);
    });
    stream->synchronize();
    return graphs->counts().launches;
  }
  // Queues the op for the first time, again, and then with one field changed at a time, if the op's check allows that.
  template <class Op>
  void expect_all_count(const Op& op) {
    SCOPED_TRACE(Op::kSpan.name);
    const int64_t before = graphs->counts().launches;
    EXPECT_EQ(queue(op), before);
    EXPECT_EQ(queue(op), before + 1);
    int fields = 0;
    for_each_field(op, [&](const auto&) { ++fields; });
    for (int which = 0; which < fields; ++which) {
      Op other = op;
      int field = 0;
      bool changed = false, tensor = false;
      for_each_field(other, [&]<class T>(T& each) {
        if (field++ != which) return;
        if constexpr (!is_list<T>) changed = change(each);
        tensor = is_argument<T>;
      });
      try {
        check_arguments(other);
      } catch (const Error& error) {
        EXPECT_FALSE(tensor) << error.what();
        continue;
      }
      if (changed) {
        EXPECT_EQ(queue(other), before + 1) << "field " << which + 1 << ": a stale graph";
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, Keys, testing::Values("split"), [](const auto& info) { return info.param; });

TEST_P(Keys, EveryFieldOfEveryOpCounts) {
  OpSamples samples([&](DType type, Shape shape) {
    return on_device(type == DType::f32 ? tensors.uniform(type, shape) : tensors.integers(type, shape, 0, 1));
  });
  int once = 0;  // ops that run once per step or per run
  for (const AnyOp& sample : samples.all())
    std::visit(
        [&]<class Op>(const Op& op) {
          if (Op::kSpan.category == Category::optimizer || std::is_same_v<Op, op::Clear> ||
              std::is_same_v<Op, op::RotaryTable>)
            ++once;
          else expect_all_count(op);
        },
        sample);
  EXPECT_EQ(once, 8);
}

TEST_P(Keys, OptionalTensorsCount) {
  const auto square = [&] { return on_device(tensors.uniform(DType::f32, {4, 4})); };
  const Tensor a = square(), b = square(), c = square();
  expect_all_count(op::Matmul{.a = a, .b = b, .c = c});
  expect_all_count(op::Matmul{.a = a, .b = b, .c = c, .bias = zeros({4})});
  expect_all_count(op::Matmul{.a = a, .b = b, .c = c, .pre_activation = square()});
  expect_all_count(op::Matmul{.a = a, .b = b, .c = c, .activation_backward = square()});
}

TEST_P(Keys, ShapesTypesStreamsAndOperationsCount) {
  const Tensor x = on_device(tensors.uniform(DType::f32, {4, 4})), y = zeros({4, 4});
  const auto other_stream = device->create_compute_stream();
  const auto queue = [&](const std::function<void(Stream&)>& call, Stream& on) {
    graphs->over(on, [&] { call(on), call(on); });
    on.synchronize();
    return graphs->counts().launches;
  };
  const auto gelu = [&](Tensor from, Tensor to) {
    return [this, from, to](Stream& on) { through().run(op::ActivationForward{from, to}, on); };
  };
  queue(gelu(x, y), *stream);
  ASSERT_EQ(queue(gelu(x, y), *stream), 1);
  EXPECT_EQ(queue(gelu(x.view({16}), y.view({16})), *stream), 1);
  EXPECT_EQ(queue(gelu(x.slice(0, 2), y.slice(0, 2)), *stream), 1);
  const Tensor half_x{x.data, DType::bf16, x.shape}, half_y{y.data, DType::bf16, y.shape};
  EXPECT_EQ(queue(gelu(half_x, half_y), *stream), 1);
  EXPECT_EQ(queue(gelu(x, y), *other_stream), 1);
  EXPECT_EQ(queue([&](Stream& on) { through().run(op::Convert{x, y}, on); }, *stream), 1);
  EXPECT_EQ(queue(gelu(x, y), *stream), 2);
}

}  // namespace
}  // namespace trivet::test
