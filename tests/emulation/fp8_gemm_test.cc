// FP8 in the emulated cuBLASLt: the GEMMs that it refuses by Hopper's rules, and Trivet's GEMMs, which it accepts.
// For emulated builds.
#include <cublasLt.h>
#include <functional>
#include <gtest/gtest.h>

#include "kernels/cuda/cuda_gemms.h"
#include "kernels/cuda/cuda_ops.h"
#include "tests/emulation/runtime.h"
#include "tests/support/matmul_options.h"
#include "tests/support/message_of.h"
#include "tests/support/mirrored_ops.h"
#include "tests/support/near.h"
#include "tests/support/tensors.h"

namespace trivet::test {
namespace {

#if CUDART_VERSION >= 12090
static_assert(static_cast<int>(ScaleMode::tensor) == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F);
static_assert(static_cast<int>(ScaleMode::vectors) == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
static_assert(static_cast<int>(ScaleMode::squares) == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
static_assert(CUBLASLT_MATMUL_DESC_A_SCALE_MODE == 31 && CUBLASLT_MATMUL_DESC_B_SCALE_MODE == 32);
#endif

class Fp8Gemms : public testing::Test {
 protected:
  template <class T>
  T* behind(const void* data, int64_t bytes) {
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes));
  }
  Tensor on_gpu(DType dtype, Shape shape) { return arena.allocate(dtype, shape); }
  void* memory(int64_t bytes) { return on_gpu(DType::u8, {bytes}).data; }
  // The number of GEMMs that the library has queued in FP8: with fast accumulation, and without.
  static std::pair<int64_t, int64_t> products() {
    return {emulation::driver().fast_products, emulation::driver().fp8_products};
  }

  std::unique_ptr<Device> device = create_cuda_device(0);
  std::unique_ptr<Stream> stream = device->create_compute_stream();
  Arena arena{*device, "test"};
};

TEST_F(Fp8Gemms, ThatHopperDoesNotHaveAreRefused) {
  CudaGemms gemms({.gemm_candidates = 1});
  auto* const workspace = static_cast<std::byte*>(memory(CudaGemms::kWorkspaceBytes));
  const CudaGemm right{.m = 5,
                       .n = 48,
                       .k = 64,
                       .transpose_a = false,
                       .transpose_b = true,
                       .accumulate = false,
                       .fast = false,
                       .dtype = DType::e5m2,
                       .b_dtype = DType::e4m3,
                       .c_dtype = DType::bf16,
                       .a_scale = memory(64),
                       .b_scale = memory(64),
                       .a = memory(1 << 16),
                       .b = memory(1 << 16),
                       .c = memory(1 << 16),
                       .bias = nullptr,
                       .pre_activation = nullptr,
                       .activation_backward = nullptr,
                       .activation = Activation::gelu,
                       .bias_grad = nullptr,
                       .residual = nullptr};
  const auto runs = [&](const std::function<void(CudaGemm&)>& change) {
    CudaGemm gemm = right;
    change(gemm);
    const auto before = products();
    const bool taken = gemms.run(gemm, nullptr, workspace, raw(*stream));
    stream->synchronize();
    const auto after = products();
    EXPECT_EQ(after.first + after.second, before.first + before.second + taken);
    return taken;
  };
  const auto fp32 = [](CudaGemm& g) { g.c_dtype = DType::f32; };
  EXPECT_TRUE(runs([](CudaGemm&) {}));
  EXPECT_TRUE(runs([](CudaGemm& g) { g.dtype = DType::e4m3; }));
  EXPECT_TRUE(runs([](CudaGemm& g) { g.dtype = DType::e4m3, g.b_dtype = DType::e5m2; }));
  EXPECT_TRUE(runs([&](CudaGemm& g) { fp32(g), g.n = 44, g.accumulate = true; }));
  for (const DType c : {DType::bf16, DType::f32})
    EXPECT_TRUE(runs([&](CudaGemm& g) { g.c_dtype = c, g.bias = memory(96); })) << "a bias in bf16";

  EXPECT_FALSE(runs([](CudaGemm& g) { g.dtype = DType::e5m2, g.b_dtype = DType::e5m2; }));
  EXPECT_FALSE(runs([](CudaGemm& g) { g.transpose_a = true; })) << "not K-major";
  EXPECT_FALSE(runs([](CudaGemm& g) { g.transpose_b = false; })) << "not K-major";
  EXPECT_FALSE(runs([](CudaGemm& g) { g.k = 72; }));
  EXPECT_FALSE(runs([](CudaGemm& g) { g.n = 44; })) << "rows of 88 bytes";
  EXPECT_FALSE(runs([&](CudaGemm& g) { fp32(g), g.n = 46; })) << "rows of 184 bytes";
  EXPECT_FALSE(runs([&](CudaGemm& g) { g.a = behind<void>(g.a, 8); }));
  EXPECT_FALSE(runs([&](CudaGemm& g) { g.b = behind<void>(g.b, 8); }));
  EXPECT_FALSE(runs([&](CudaGemm& g) { g.c = behind<void>(g.c, 8); }));
  EXPECT_FALSE(runs([&](CudaGemm& g) { g.a_scale = behind<void>(g.a_scale, 4); }));
  EXPECT_FALSE(runs([&](CudaGemm& g) { g.b_scale = behind<void>(g.b_scale, 8); }));
  EXPECT_FALSE(runs([&](CudaGemm& g) { g.pre_activation = memory(1 << 12); })) << "GELU";

  const auto blocks = [&](ScaleMode a, ScaleMode b, const std::function<void(CudaGemm&)>& change) {
    return runs([&](CudaGemm& g) {
      g.m = 8, g.dtype = DType::e4m3, g.a_mode = a, g.b_mode = b;
      g.a_scale = memory(1 << 12), g.b_scale = memory(1 << 12);
      change(g);
    });
  };
  using enum ScaleMode;
  const auto as_it_is = [](CudaGemm&) {};
  for (const auto& [a, b] : {std::pair(vectors, vectors), {vectors, squares}, {squares, vectors}}) {
    EXPECT_TRUE(blocks(a, b, as_it_is));
    EXPECT_TRUE(blocks(a, b, [&](CudaGemm& g) { fp32(g), g.n = 44, g.accumulate = true; }));
    EXPECT_TRUE(blocks(a, b, [&](CudaGemm& g) { g.bias = memory(96); }));
    EXPECT_FALSE(blocks(a, b, [](CudaGemm& g) { g.m = 6; }));
    EXPECT_FALSE(blocks(a, b, [](CudaGemm& g) { g.k = 72; }));
    EXPECT_FALSE(blocks(a, b, [&](CudaGemm& g) { fp32(g), g.n = 46; }));
    EXPECT_FALSE(blocks(a, b, [](CudaGemm& g) { g.fast = true; }));
    EXPECT_FALSE(blocks(a, b, [](CudaGemm& g) { g.dtype = DType::e5m2; }));
    EXPECT_FALSE(blocks(a, b, [](CudaGemm& g) { g.transpose_b = false; }));
    EXPECT_FALSE(blocks(a, b, [&](CudaGemm& g) { g.a_scale = behind<void>(g.a_scale, 4); }));
    EXPECT_FALSE(blocks(a, b, [&](CudaGemm& g) { g.b_scale = behind<void>(g.b_scale, 8); }));
  }
  for (const auto& [a, b] : {std::pair(squares, squares),
                             {tensor, vectors},
                             {vectors, tensor},
                             {tensor, squares},
                             {foreign, vectors},
                             {vectors, foreign}})
    EXPECT_FALSE(blocks(a, b, as_it_is));
  // What only a GPU and a library of another kind refuse.
  emulation::driver().compute_capability = 100;
  EXPECT_TRUE(runs([](CudaGemm& g) { g.m = 12; }));
  EXPECT_FALSE(blocks(vectors, squares, [](CudaGemm& g) { g.m = 12; }));
  emulation::driver().compute_capability = 90;
  emulation::driver().cublas_version = 120804;
  EXPECT_FALSE(message_of<Error>([&] { blocks(vectors, squares, [](CudaGemm& g) { g.m = 16; }); }).empty());
  emulation::driver().cublas_version = 120900;
}

TEST_F(Fp8Gemms, WithBlockScalesNeedHopperAndItsLibrary) {
  const auto create = [&](int capability, size_t version) {
    emulation::driver().compute_capability = capability, emulation::driver().cublas_version = version;
    create_cuda_ops(*device, {.block_scales = true});
  };
  EXPECT_NO_THROW(create(90, 120900));
  EXPECT_NO_THROW(create(90, 130100));
  const std::string head = "a GPU of compute capability 9.0 (found ", tail = ")";
  EXPECT_EQ(message_of([&] { create(89, 130100); }), head + "8.9) and cuBLASLt 12.9 or newer (found 13.1" + tail);
  EXPECT_EQ(message_of([&] { create(100, 120900); }), head + "10.0) and cuBLASLt 12.9 or newer (found 12.9" + tail);
  EXPECT_EQ(message_of([&] { create(90, 120805); }), head + "9.0) and cuBLASLt 12.9 or newer (found 12.8" + tail);
  emulation::driver().compute_capability = 90, emulation::driver().cublas_version = 120900;
}

// A fallback would be just as correct and far slower. So in all roles, transposed or not, the library must run in FP8
// whatever it can, with fast accumulation in forward passes only.
TEST_F(Fp8Gemms, OfLinearLayersAreTheLibrarys) {
  const std::unique_ptr<Ops> ops = create_cuda_ops(*device, {});
  const auto queued = [&](DType a, DType c, bool transpose_a, bool transpose_b, int64_t k, DType b = DType::e4m3) {
    const auto [fast, others] = products();
    const int64_t m = 33, n = 48;
    ops->run(op::Matmul{.a = on_gpu(a, transpose_a ? Shape{k, m} : Shape{m, k}),
                        .b = on_gpu(b, transpose_b ? Shape{n, k} : Shape{k, n}),
                        .c = on_gpu(c, {m, n}),
                        .transpose_a = transpose_a,
                        .transpose_b = transpose_b,
                        .scales = {on_gpu(DType::f32, {1}), on_gpu(DType::f32, {1})}},
             *stream);
    stream->synchronize();
    return std::pair(products().first - fast, products().second - others);
  };
  using Counts = std::pair<int64_t, int64_t>;
  constexpr DType kE4m3 = DType::e4m3, kE5m2 = DType::e5m2, kBf16 = DType::bf16, kF32 = DType::f32;
  EXPECT_EQ(queued(kE4m3, kBf16, false, true, 64), Counts(1, 0)) << "forward";
  for (const DType gradient : {kE5m2, kE4m3}) {
    EXPECT_EQ(queued(gradient, kBf16, false, false, 64), Counts(0, 1)) << "gradient of the input";
    EXPECT_EQ(queued(gradient, kF32, true, false, 64), Counts(0, 1)) << "gradient of the weight";
  }
  EXPECT_EQ(queued(kE5m2, kBf16, false, true, 64), Counts(0, 1));
  EXPECT_EQ(queued(kE4m3, kBf16, false, true, 40), Counts(0, 0)) << "in bf16";
  EXPECT_EQ(queued(kE4m3, kF32, true, false, 40), Counts(0, 0)) << "in bf16";

  // The same with block scales. halves: parts of the weight, or of the tokens.
  const auto in_blocks = [&](DType c, bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                             int64_t halves) {
    const auto before = products();
    const int64_t blocks_before = emulation::driver().block_products;
    const auto count = [](int64_t i) { return ScaleBlocks::count(i); };
    const Shape a_scales = transpose_a ? Shape{halves, count(k / halves), m} : Shape{m, 1, count(k)};
    const int64_t rows = (transpose_b ? n : k) / halves;
    const Shape b_scales{halves, count(rows), transpose_a ? n : count(transpose_b ? k : n)};
    ops->run(op::Matmul{.a = on_gpu(kE4m3, transpose_a ? Shape{k, m} : Shape{m, k}),
                        .b = on_gpu(kE4m3, transpose_b ? Shape{n, k} : Shape{k, n}),
                        .c = on_gpu(c, {m, n}),
                        .transpose_a = transpose_a,
                        .transpose_b = transpose_b,
                        .scales = {on_gpu(kF32, a_scales), on_gpu(kF32, b_scales)}},
             *stream);
    stream->synchronize();
    const int64_t queued = emulation::driver().block_products - blocks_before;
    EXPECT_EQ(products(), Counts(before.first, before.second + queued)) << "never fast";
    return queued;
  };
  for (const int64_t halves : {1, 2}) {
    EXPECT_EQ(in_blocks(kBf16, false, true, 32, 48, 256, halves), 1) << "forward, of any halves";
    EXPECT_EQ(in_blocks(kBf16, false, false, 32, 48, 256, halves), 1) << "gradient of the input";
    EXPECT_EQ(in_blocks(kF32, true, false, 36, 20, 256, halves), 1) << "gradient of the weight";
    EXPECT_EQ(in_blocks(kBf16, false, false, 32, 48, 288, halves), halves == 1) << "halves of 144 along k";
    EXPECT_EQ(in_blocks(kF32, true, false, 36, 20, 288, halves), halves == 1) << "halves of 144 along k";
    EXPECT_EQ(in_blocks(kBf16, false, true, 33, 48, 256, halves), 0) << "an odd number of tokens";
    EXPECT_EQ(in_blocks(kBf16, false, true, 32, 48, 264, halves), 0) << "k % 16 is 8";
  }
}

// All kinds of epilogues, and operands spanning several tiles, some partial or unaligned, against the CPU.
TEST_F(Fp8Gemms, AgreeWithTheCpus) {
  Tensors tensors;
  const std::unique_ptr<Ops> cpu = create_cpu_ops(1, tested_cpu_isa());
  const std::unique_ptr<Stream> host = tensors.device().create_compute_stream();
  for (const double trial_operations : {1e9, 0.0}) {
    const std::unique_ptr<Ops> gpu = create_test_ops(kOnCuda, {.trial_operations = trial_operations});
    const auto compare = [&](const MatmulOptions& options, int64_t m, int64_t n, int64_t k, const char* what) {
      SCOPED_TRACE(what);
      const auto drawn = [&](DType dtype, bool transposed, int64_t rows, int64_t columns) {
        return tensors.uniform(dtype, transposed ? Shape{columns, rows} : Shape{rows, columns}, -3, 3);
      };
      const Tensor a = drawn(options.transpose_b ? DType::e4m3 : DType::e5m2, options.transpose_a, m, k);
      const Tensor b = drawn(DType::e4m3, options.transpose_b, k, n);
      const Tensor c = tensors.full(options.transpose_a ? DType::f32 : DType::bf16, {m, n}, 0.5);
      op::Matmul how = options.of(a, b, c);
      how.scales = {tensors.full(DType::f32, {1}, 0.125), tensors.full(DType::f32, {1}, 0.5)};
      op::Matmul theirs = how;
      theirs.c = tensors.copy(c);
      if (how.pre_activation) theirs.pre_activation = tensors.copy(how.pre_activation);
      gpu->run(how, *host);
      cpu->run(theirs, *host);
      host->synchronize();
      const auto allowed = [&](int64_t i) {
        return tolerance(DType::f32, k, 3) + 3 * tolerance(how.c.dtype, 1, 1 + std::abs(get(theirs.c, i)));
      };
      EXPECT_TRUE(near(how.c, values(theirs.c), allowed));
      if (how.pre_activation) {
        EXPECT_TRUE(near(how.pre_activation, values(theirs.pre_activation), allowed));
      }
    };
    constexpr int64_t m = 24, n = 48, k = 80;
    const auto matrix = [&] { return tensors.uniform(DType::bf16, {m, n}); };
    const Tensor bias = tensors.uniform(DType::bf16, {n});
    compare({.transpose_b = true, .bias = bias, .pre_activation = matrix()}, m, n, k, "GELU");
    compare({.activation_backward = matrix()}, m, n, k, "GELU's derivative");
    compare({.transpose_b = true, .bias = bias, .residual = matrix()}, m, n, k, "residual");
    compare({.transpose_b = true, .residual = matrix()}, m, n, 33, "residual, in bf16");
    compare({}, 300, 264, 272, "gradient of the input");
    compare({.transpose_a = true, .accumulate = true}, 130, 20, 144, "gradient of the weight");
    compare({.transpose_a = true, .accumulate = true}, 1, 132, 16, "gradient of the weight, of a row");
  }
}

}  // namespace
}  // namespace trivet::test
