// The graphs that cuDNN is told, checked where there is no GPU: computed here operation by operation, against
// attention's definition; and whether cuDNN takes them, for a GPU that it only reads a description of.
#include "kernels/cuda/attention_graph.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <random>

#include "kernels/cuda/cudnn_attention.h"
#ifdef TRIVET_STAND_IN_DRIVER
#include "kernels/cuda/cudnn_plan.h"
#endif
#include "tests/support/attention_reference.h"
#include "tests/support/near.h"

namespace trivet {
namespace {

using test::AttentionCase;
using test::AttentionReference;
using test::Vector;
namespace t = attention_tensor;
using Sizes = std::array<int64_t, 4>;

// Computes a graph in double arithmetic. Each tensor lies in a vector as its strides say.
class Interpreter {
 public:
  explicit Interpreter(const AttentionGraph& graph) : graph_(graph), at_(graph.tensors.size()) {
    for (size_t i = 0; i < at_.size(); ++i) {
      const GraphTensor& tensor = graph.tensors[i];
      int64_t last = 0;
      for (int k = 0; k < 4; ++k) last += (tensor.size[k] - 1) * tensor.stride[k];
      own_.emplace_back(static_cast<size_t>(last + 1), tensor.place == GraphTensor::Place::number ? tensor.value : NAN);
      at_[i] = own_.back().data();
    }
  }
  // Puts a tensor of memory at `data`.
  void place(int tensor, double* data) { at_[static_cast<size_t>(tensor)] = data; }

  void run() {
    for (const GraphStep& step : graph_.steps)
      for_each(graph_.tensors[static_cast<size_t>(step.out)].size,
               [&](const Sizes& where) { element(step.out, where) = compute(step, where); });
  }

 private:
  template <class F>
  static void for_each(const Sizes& size, F&& f) {
    for (int64_t i = 0; i < size[0]; ++i)
      for (int64_t j = 0; j < size[1]; ++j)
        for (int64_t k = 0; k < size[2]; ++k)
          for (int64_t l = 0; l < size[3]; ++l) f(Sizes{i, j, k, l});
  }
  double& element(int tensor, const Sizes& where) {
    const GraphTensor& of = graph_.tensors[static_cast<size_t>(tensor)];
    int64_t offset = 0;
    for (int k = 0; k < 4; ++k)
      if (of.size[k] > 1) offset += where[k] * of.stride[k];
    return at_[static_cast<size_t>(tensor)][offset];
  }
  double compute(const GraphStep& step, const Sizes& where) {
    const auto x = [&] { return element(step.x, where); };
    const auto y = [&] { return element(step.y, where); };
    const GraphTensor& of_x = graph_.tensors[static_cast<size_t>(step.x)];
    const auto column = [&](int64_t l) { return element(step.x, {where[0], where[1], where[2], l}); };
    double sum = 0, most = -INFINITY;
    switch (step.op) {
      case GraphOp::matmul: {
        const Sizes& of_y = graph_.tensors[static_cast<size_t>(step.y)].size;
        EXPECT_EQ(of_x.size[3], of_y[2]);
        EXPECT_EQ(of_x.size[1] % of_y[1], 0);
        for (int64_t l = 0; l < of_x.size[3]; ++l)
          sum += column(l) * element(step.y, {where[0], where[1] / (of_x.size[1] / of_y[1]), l, where[3]});
        return sum;
      }
      case GraphOp::reshape: {  // out's strides tell where in x's memory it is
        const GraphTensor& out = graph_.tensors[static_cast<size_t>(step.out)];
        int64_t offset = 0;
        for (int k = 0; k < 4; ++k) offset += where[k] * out.stride[k];
        return at_[static_cast<size_t>(step.x)][offset];
      }
      case GraphOp::copy: return x();
      case GraphOp::multiply: return x() * y();
      case GraphOp::divide: return x() / y();
      case GraphOp::add: return x() + y();
      case GraphOp::subtract: return x() - y();
      case GraphOp::exp: return std::exp(x());
      case GraphOp::log: return std::log(x());
      case GraphOp::row_index: return static_cast<double>(where[2]);
      case GraphOp::column_index: return static_cast<double>(where[3]);
      case GraphOp::at_least: return x() >= y();
      case GraphOp::select: return element(step.condition, where) != 0 ? x() : y();
      case GraphOp::row_max:
        for (int64_t l = 0; l < of_x.size[3]; ++l) most = std::max(most, column(l));
        return most;
      case GraphOp::row_sum:
        for (int64_t l = 0; l < of_x.size[3]; ++l) sum += column(l);
        return sum;
      case GraphOp::head_sum: {
        const int64_t members = of_x.size[1] / graph_.tensors[static_cast<size_t>(step.out)].size[1];
        for (int64_t l = 0; l < members; ++l)
          sum += element(step.x, {where[0], where[1] * members + l, where[2], where[3]});
        return sum;
      }
    }
    return NAN;
  }

  const AttentionGraph& graph_;
  std::vector<Vector> own_;
  std::vector<double*> at_;
};

void expect_near(const char* what, const Vector& found, const Vector& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], wanted[i], 1e-5) << what << " at " << i;
}

// A tensor of one kind of heads for each, cut out of a Vector as the reference has it; and put back there.
struct Apart {
  AttentionShape shape;
  std::array<Vector, 3> parts;
  explicit Apart(const AttentionCase& z, const Vector& qkv) {
    const auto layout = [&](int64_t members) {
      return HeadsLayout::in_groups(z.s, z.b, z.groups(), members, z.d, members * z.d);
    };
    shape = {layout(z.members()), layout(1), layout(1), DType::bf16};
    const HeadsLayout* const layouts[] = {&shape.q, &shape.k, &shape.v};
    for (size_t i = 0; i < 3; ++i) parts[i].resize(static_cast<size_t>(layouts[i]->numel()), NAN);
    each(z, [&](size_t of_qkv, size_t part, size_t at) { parts[part][at] = qkv[of_qkv]; });
  }
  Vector together(const AttentionCase& z) const {
    Vector qkv(static_cast<size_t>(z.s * z.b * z.qkv_width()));
    each(z, [&](size_t of_qkv, size_t part, size_t at) { qkv[of_qkv] = parts[part][at]; });
    return qkv;
  }
  template <class F>
  void each(const AttentionCase& z, const F& f) const {
    for (int64_t p = 0; p < z.s; ++p)
      for (int64_t b = 0; b < z.b; ++b)
        for (int64_t head = 0; head < z.heads; ++head)
          for (int64_t part = 0; part < 3; ++part)
            for (int64_t c = 0; c < z.d; ++c) {
              const int64_t at = part == 0 ? shape.q.at(p, b, head) : shape.k.at(p, b, head / z.members());
              f(AttentionReference{z}.at(p, b, head, part, c), static_cast<size_t>(part), static_cast<size_t>(at + c));
            }
  }
};

TEST(AttentionGraph, ComputesTheDefinitionOfHeadsThatShareKeysAndValues) {
  for (const auto& [s, heads, kv_heads] : {std::array<int64_t, 3>{7, 4, 2}, {5, 3, 1}, {6, 2, 2}}) {
    const AttentionCase z{.s = s, .b = 2, .heads = heads, .d = 8, .dtype = DType::bf16, .kv_heads = kv_heads};
    std::mt19937 random{3};
    std::normal_distribution<double> normal;
    Vector qkv(static_cast<size_t>(z.s * z.b * z.qkv_width())), dout(static_cast<size_t>(s * z.b * heads * z.d));
    for (double& v : qkv) v = normal(random);
    for (double& v : dout) v = normal(random);
    Vector wanted_out, wanted_lse;
    AttentionReference{z}.forward(qkv, wanted_out, wanted_lse);
    Apart x(z, qkv), dx(z, Vector(qkv.size(), NAN));

    Vector out(wanted_out.size(), NAN), lse(wanted_lse.size(), NAN);
    const AttentionGraph forward = attention_forward_graph(x.shape);
    Interpreter f(forward);
    for (int i = 0; i < 3; ++i) f.place(t::query + i, x.parts[static_cast<size_t>(i)].data());
    f.place(t::out, out.data());
    f.place(t::lse, lse.data());
    f.run();
    expect_near("out", out, wanted_out);
    expect_near("lse", lse, wanted_lse);

    for (const bool deterministic : {false, true}) {
      const AttentionGraph backward = attention_backward_graph(x.shape, deterministic);
      Interpreter g(backward);
      for (int i = 0; i < 3; ++i) {
        g.place(t::query + i, x.parts[static_cast<size_t>(i)].data());
        g.place(t::dquery + i, dx.parts[static_cast<size_t>(i)].data());
      }
      g.place(t::out, out.data());
      g.place(t::lse, lse.data());
      g.place(t::dout, dout.data());
      g.run();
      expect_near("dqkv", dx.together(z), AttentionReference{z}.backward(qkv, dout));
    }
  }
}

TEST(AttentionGraph, ComputesTheDefinitionFromAndIntoTheLayoutOfOps) {
  for (const auto& [s, b, heads, d] : {Sizes{1, 1, 1, 8}, Sizes{7, 2, 3, 16}, Sizes{12, 3, 2, 8}}) {
    // given numbers in the layout of the ops
    const AttentionCase z{s, b, heads, d, DType::bf16};
    const AttentionShape shape = packed_attention(s, b, heads, heads, d, DType::bf16);
    std::mt19937 random{3};
    std::normal_distribution<double> normal;
    Vector qkv(static_cast<size_t>(s * b * heads * 3 * d)), dout(qkv.size() / 3);
    for (double& v : qkv) v = normal(random);
    for (double& v : dout) v = normal(random);
    Vector wanted_out, wanted_lse;
    AttentionReference{z}.forward(qkv, wanted_out, wanted_lse);

    // when the forward graph is computed, where query, key and value lie in one tensor
    Vector out(wanted_out.size(), NAN), lse(wanted_lse.size(), NAN);
    const AttentionGraph forward = attention_forward_graph(shape);
    Interpreter f(forward);
    for (int i = 0; i < 3; ++i) f.place(t::query + i, qkv.data() + i * d);
    f.place(t::out, out.data());
    f.place(t::lse, lse.data());
    f.run();

    // then that is attention; and so is the backward graph's result its gradient
    expect_near("out", out, wanted_out);
    expect_near("lse", lse, wanted_lse);
    for (const bool deterministic : {false, true}) {
      Vector dqkv(qkv.size(), NAN);
      const AttentionGraph backward = attention_backward_graph(shape, deterministic);
      Interpreter g(backward);
      for (int i = 0; i < 3; ++i) {
        g.place(t::query + i, qkv.data() + i * d);
        g.place(t::dquery + i, dqkv.data() + i * d);
      }
      g.place(t::out, out.data());
      g.place(t::lse, lse.data());
      g.place(t::dout, dout.data());
      g.run();
      expect_near("dqkv", dqkv, AttentionReference{z}.backward(qkv, dout));
    }
  }
}

#ifdef TRIVET_STAND_IN_DRIVER  // in builds with cuDNN
// An H200, as cuDNN writes down a device.
constexpr const char* kH200 = R"({"deviceName":"NVIDIA H200","deviceVer":900,"driverVer":13000,"cudaDeviceId":0,
  "maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":132,
  "warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,
  "reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,
  "maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"totalGlobalMem":150754820096,
  "smClockRateKHz":1980000,"memClockRateKHz":3201000,"l2CacheSize":62914560})";

TEST(CudnnAttention, HasKernelsForTheGraphsOnAnH200ThatIsNotHere) {
  // cuDNN compiles its kernels here, and hands them to the driver; where there is none, to a stand-in that takes all.
  if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)) {
    ASSERT_TRUE(dlopen(TRIVET_STAND_IN_DRIVER, RTLD_NOW | RTLD_GLOBAL)) << dlerror();
  }
  const CudnnLibrary library;
  AttentionShape of_groups = packed_attention(256, 2, 3, 1, 64, DType::bf16);
  for (HeadsLayout* z : {&of_groups.q, &of_groups.k, &of_groups.v})
    *z = HeadsLayout::in_groups(256, 2, 2, z == &of_groups.q ? 4 : 1, 64, z == &of_groups.q ? 4 * 64 : 64);
  for (const AttentionShape& shape :
       {packed_attention(256, 2, 3, 3, 64, DType::bf16), packed_attention(256, 2, 3, 1, 64, DType::bf16), of_groups}) {
    const int64_t scores = shape.q.b * shape.q.heads() * shape.q.s * shape.q.s;
    EXPECT_GE(CudnnPlan(library, attention_forward_graph(shape), nullptr, kH200).engine(), 0);
    const auto backward_bytes = [&](bool deterministic) {
      return CudnnPlan(library, attention_backward_graph(shape, deterministic), nullptr, kH200).workspace_bytes();
    };
    EXPECT_LT(backward_bytes(false), 2 * scores);
    EXPECT_GE(backward_bytes(true), 2 * scores);  // it stores their gradient
  }
}
#endif

TEST(CudnnAttention, NamesWhatItHasNoKernelFor) {
  if (!built_with_cudnn()) GTEST_SKIP() << "no cuDNN";
  const auto refusal = [](const AttentionShape& shape) -> std::string {
    try {
      create_cudnn_attention(shape, true);
      return "";
    } catch (const ConfigError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(refusal(packed_attention(8, 1, 1, 1, 64, DType::f32)), "cuDNN attention needs bf16, found fp32");
  EXPECT_EQ(refusal(packed_attention(8, 1, 1, 1, 20, DType::bf16)),
            "cuDNN attention needs head_dim % 8 == 0, found a head_dim of 20");
  EXPECT_EQ(refusal(packed_attention(1, 1, 1, 1, 64, DType::bf16)),
            "cuDNN attention needs at least 2 positions, found 1");
  EXPECT_EQ(
      refusal(packed_attention(8, 1, 4, 2, 64, DType::bf16)),
      "cuDNN attention needs one stride between query heads, found groups of 2 heads that lie further apart, as in a "
      "tensor with their keys and values");
}

TEST(CudnnAttention, ABuildWithoutItSaysSo) {
  if (built_with_cudnn()) GTEST_SKIP() << "this build has cuDNN";
  EXPECT_THROW(create_cudnn_attention({}, true), ConfigError);
}

}  // namespace
}  // namespace trivet
