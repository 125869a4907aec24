// Speed of the CUDA operations at the sizes of a GPT-3 1.3B layer (16 sequences of 2048 per micro-batch). A
// memory-bound op, counting the bytes that it must read or write once, is compared with a plain 1 GiB copy on the
// device, measured here. GEMMs and attention print their FLOP/s, against the dense bf16 peak. A GEMM's row also shows
// the time of cuBLASLt alone, with the fastest of all its proposals for the shape and, with a GELU, the time of two
// separate ops; attention's row, the time of the kernels for all GPUs.
//
//     cuda_ops_bench [peak in TFLOP/s, default 989.4: H100 and H200]
//     cuda_ops_bench fp8      the linear layers of Llama 3.1 8B in FP8, against bf16
//     cuda_ops_bench blocks   the same with block scales
//
// Each row is the median of 15 rounds; a round queues some calls and waits for the stream. Issue 5 asks for 0.85 of the
// copy and 0.95 of cuBLASLt. torch_step.py times cuDNN's attention.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fmt/core.h>
#include <functional>
#include <set>
#include <string_view>
#include <vector>

#include "kernels/base/arena.h"
#include "kernels/ops.h"
#include "tests/bench/cublaslt_gemm.h"
#include "tests/support/matmul_options.h"

namespace trivet {
namespace {

constexpr int64_t kSeq = 2048, kBatch = 16, kRows = kSeq * kBatch, kHidden = 2048, kFfn = 4 * kHidden, kVocab = 50304;

class Bench {
 public:
  explicit Bench(double peak) : peak_(peak * 1e12) {
    const Tensor from = tensor(DType::u8, {1 << 30}), to = tensor(DType::u8, {1 << 30});
    copy_ = 2.0 * (1 << 30) / seconds_of([&] { ops->run(op::Convert{from, to}, *stream); });
    fmt::print("{}; copy: {:.0f} GB/s; peak {:.1f} TFLOP/s\n\n", device->name(), copy_ / 1e9, peak_ / 1e12);
    fmt::print("{:<46} {:>9} {:>9} {:>8}\n", "op", "ms", "GB/s", "of copy");
  }

  // Values in [-3, 3) (integers: token ids) that depend only on the index.
  Tensor tensor(DType dtype, Shape shape) {
    const Tensor t = arena.allocate(dtype, shape);
    std::vector<std::byte> host(static_cast<size_t>(t.bytes()));
    const Tensor x{host.data(), dtype, shape};
    for (int64_t i = 0; i < t.numel(); ++i) {
      const uint64_t hash = static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull;
      const float value = static_cast<float>(hash >> 40) * 0x6p-24f - 3.0f;
      if (dtype == DType::f32) x.as<float>()[i] = value;
      else if (dtype == DType::bf16) x.as<bf16>()[i] = bf16(value);
      else if (dtype == DType::i32) x.as<int32_t>()[i] = static_cast<int32_t>((hash >> 40) % 50257);
    }
    device->copy_to_device(host.data(), t, *stream);
    stream->synchronize();
    return t;
  }

  void memory(const std::string& name, int64_t bytes, const std::function<void()>& call) {
    const double seconds = seconds_of(call), rate = static_cast<double>(bytes) / seconds;
    fmt::print("{:<46} {:>9.3f} {:>9.0f} {:>8.2f}\n", name, seconds * 1e3, rate / 1e9, rate / copy_);
  }
  // others: other ways to compute the same values, or null; the row shows the time of each and its ratio to ours.
  void arithmetic(const std::string& name, double operations, const std::function<void()>& call,
                  const std::vector<std::function<void()>>& others) {
    const double seconds = seconds_of(call), rate = operations / seconds;
    fmt::print("{:<46} {:>9.3f} {:>9.1f} {:>8.2f}", name, seconds * 1e3, rate / 1e12, rate / peak_);
    for (const auto& other : others) {
      if (!other) {
        fmt::print(" {:>9} {:>10}", "-", "-");
        continue;
      }
      const double theirs = seconds_of(other);
      fmt::print(" {:>9.3f} {:>10.2f}", theirs * 1e3, theirs / seconds);
    }
    fmt::print("\n");
    std::fflush(stdout);
  }

  std::unique_ptr<Device> device = create_cuda_device(0);
  Arena arena{*device, "bench"};
  std::unique_ptr<Stream> stream = device->create_compute_stream();
  std::unique_ptr<Ops> ops = create_cuda_ops(*device);

 private:
  double seconds_of(const std::function<void()>& call) {
    const auto round = [&](int calls) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) call();
      stream->synchronize();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls;
    };
    round(1);  // the first call autotunes
    // A GPU that idled while the operands were created takes a while to reach its clock rate.
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(100)) round(3);
    const int calls = std::clamp(static_cast<int>(5e-3 / round(3)), 1, 50);  // so that a round lasts some milliseconds
    std::vector<double> seconds;
    for (int i = 0; i < 15; ++i) seconds.push_back(round(calls));
    std::nth_element(seconds.begin(), seconds.begin() + 7, seconds.end());
    return seconds[7];
  }

  double copy_ = 1;
  const double peak_;
};

void activations(Bench& bench) {
  Ops& ops = *bench.ops;
  Stream& stream = *bench.stream;
  const DType T = DType::bf16;
  const Shape hidden_shape{kSeq, kBatch, kHidden};
  const int64_t hidden = kRows * kHidden * 2, ffn = kRows * kFfn * 2;
  const Tensor x = bench.tensor(T, hidden_shape), y = bench.tensor(T, hidden_shape), z = bench.tensor(T, hidden_shape);
  const Tensor u = bench.tensor(T, {kRows, kFfn}), v = bench.tensor(T, {kRows, kFfn});
  const Tensor bias = bench.tensor(T, {kHidden}), table = bench.tensor(T, {kVocab, kHidden});
  const Tensor mean = bench.tensor(DType::f32, {kRows}), rstd = bench.tensor(DType::f32, {kRows});
  const Tensor dgamma = bench.tensor(DType::f32, {kHidden}), sum = bench.tensor(DType::f32, {kFfn});
  const Tensor tokens = bench.tensor(DType::i32, {kSeq, kBatch}), dtable = bench.tensor(DType::f32, {kVocab, kHidden});
  const Tensor positions = bench.tensor(T, {kSeq, kHidden}), dpositions = bench.tensor(DType::f32, {kSeq, kHidden});
  // Distinct rows of the table: a repeated row need not be moved again.
  std::vector<int32_t> ids(static_cast<size_t>(kRows));
  bench.device->copy_to_host(tokens, ids.data(), stream);
  stream.synchronize();
  const auto rows = static_cast<int64_t>(std::set<int32_t>(ids.begin(), ids.end()).size());
  const Dropout none,
      tenth{
          .probability = 0.1f, .seed = 1, .site = 2, .first_sample = bench.tensor(DType::i64, {1}), .seq_length = kSeq};

  bench.memory("layernorm_forward", 2 * hidden, [&] {
    ops.run(op::LayernormForward{.x = x, .gamma = bias, .beta = bias, .eps = 1e-5f, .y = y, .mean = mean, .rstd = rstd},
            stream);
  });
  bench.memory("layernorm_backward, residual", 4 * hidden, [&] {
    ops.run(op::LayernormBackward{.dy = y,
                                  .x = x,
                                  .gamma = bias,
                                  .mean = mean,
                                  .rstd = rstd,
                                  .residual = z,
                                  .dx = z,
                                  .dgamma = dgamma,
                                  .dbeta = dgamma},
            stream);
  });
  bench.memory("gelu_forward", 2 * ffn, [&] { ops.run(op::ActivationForward{u, v}, stream); });
  bench.memory("gelu_backward, in place", 3 * ffn,
               [&] { ops.run(op::ActivationBackward{.x = u, .dy = v, .dx = v}, stream); });
  bench.memory("rmsnorm_forward", 2 * hidden, [&] {
    ops.run(op::LayernormForward{.x = x, .gamma = bias, .beta = {}, .eps = 1e-5f, .y = y, .mean = {}, .rstd = rstd},
            stream);
  });
  bench.memory("rmsnorm_backward, residual", 4 * hidden, [&] {
    ops.run(op::LayernormBackward{.dy = y,
                                  .x = x,
                                  .gamma = bias,
                                  .mean = {},
                                  .rstd = rstd,
                                  .residual = z,
                                  .dx = z,
                                  .dgamma = dgamma,
                                  .dbeta = {}},
            stream);
  });
  const Tensor gated = bench.tensor(T, {kRows, kFfn / 2});
  bench.memory("swiglu_forward", 3 * ffn / 2, [&] {
    ops.run(op::ActivationForward{u, gated, Activation::swiglu}, stream);
  });
  bench.memory("swiglu_backward", 5 * ffn / 2, [&] {
    ops.run(op::ActivationBackward{u, gated, v, Activation::swiglu}, stream);
  });
  // 48 query heads in 8 groups; values are not rotated.
  const QkvViews heads = qkv_views(u.view({kSeq, kBatch, kFfn}), 48, 8);
  const Tensor angles = bench.tensor(DType::f32, {kSeq, heads.q.layout.d});
  bench.memory("rope", 2 * ffn * 7 / 8,
               [&] { ops.run(op::Rope{.q = heads.q, .k = heads.k, .table = angles}, stream); });
  // Alternates between three tensors: half of a single one would still be in the GPU's cache.
  bench.memory("column_sum [32768, 2048]", hidden, [&, turn = 0]() mutable {
    ops.run(op::ColumnSum{std::array{x, y, z}[static_cast<size_t>(turn++ % 3)], dgamma}, stream);
  });
  bench.memory("column_sum [32768, 8192]", ffn, [&] { ops.run(op::ColumnSum{u, sum}, stream); });
  bench.memory("bias_dropout_add", 3 * hidden, [&] {
    ops.run(op::BiasDropoutAdd{.x = x, .bias = bias, .residual = y, .dropout = none, .out = z}, stream);
  });
  bench.memory("bias_dropout_add, dropout 0.1", 3 * hidden, [&] {
    ops.run(op::BiasDropoutAdd{.x = x, .bias = bias, .residual = y, .dropout = tenth, .out = z}, stream);
  });
  bench.memory("embedding_forward", hidden + rows * kHidden * 2, [&] {
    ops.run(op::EmbeddingForward{.tokens = tokens, .table = table, .first_row = 0, .out = z}, stream);
  });
  bench.memory("embedding_backward", hidden + 2 * rows * kHidden * 4, [&] {
    ops.run(op::EmbeddingBackward{.tokens = tokens, .dout = x, .first_row = 0, .dtable = dtable}, stream);
  });
  bench.memory("position_forward", 2 * hidden + positions.bytes(), [&] {
    ops.run(op::PositionForward{.x = x, .positions = positions, .dropout = none, .out = z}, stream);
  });
  bench.memory("position_backward", 2 * hidden + 2 * dpositions.bytes(), [&] {
    ops.run(op::PositionBackward{.dout = x, .dropout = none, .dx = z, .dpositions = dpositions}, stream);
  });
}

void head_and_optimizer(Bench& bench) {
  Ops& ops = *bench.ops;
  Stream& stream = *bench.stream;
  constexpr int64_t kLogitRows = 8192, n = 256 << 20;
  const Tensor logits = bench.tensor(DType::bf16, {kLogitRows, kVocab}),
               targets = bench.tensor(DType::i32, {kLogitRows});
  const Tensor max = bench.tensor(DType::f32, {kLogitRows}), row_sum = bench.tensor(DType::f32, {kLogitRows});
  const Tensor target = bench.tensor(DType::f32, {kLogitRows});
  op::CrossEntropyForward loss{.logits = logits,
                               .targets = targets,
                               .first_column = 0,
                               .vocab_size = 50257,
                               .row_max = max,
                               .row_sum = row_sum,
                               .target_logit = target};
  bench.memory("cross_entropy_forward", logits.bytes(), [&] { ops.run(loss, stream); });
  bench.memory("cross_entropy_forward, its gradient", 2 * logits.bytes(), [&] {
    loss.gradient = logits, loss.scale = 1;
    ops.run(loss, stream);
  });
  bench.memory("cross_entropy_backward", 2 * logits.bytes(), [&] {
    ops.run(op::CrossEntropyBackward{.logits = logits,
                                     .targets = targets,
                                     .first_column = 0,
                                     .vocab_size = 50257,
                                     .row_max = max,
                                     .row_sum = row_sum,
                                     .scale = 1},
            stream);
  });
  const Tensor weight = bench.tensor(DType::f32, {n}), grad = bench.tensor(DType::f32, {n});
  const Tensor m = bench.tensor(DType::f32, {n}), v = bench.tensor(DType::f32, {n});
  const Tensor model = bench.tensor(DType::bf16, {n}), scale = bench.tensor(DType::f32, {1});
  const Tensor bins = bench.tensor(DType::i64, {kExactSumBins});
  ops.run(op::Fill{m, 0}, stream);
  ops.run(op::Fill{v, 0}, stream);
  ops.run(op::Fill{scale, 1}, stream);
  ops.run(op::Fill{bins, 0}, stream);
  bench.memory("adamw, 268M", n * 30, [&] {
    ops.run(op::AdamWStep{.shards = {{weight, grad, m, v, model}},
                          .grad_scale = scale,
                          .how = {.learning_rate = 1e-4f, .weight_decay = 0.1f}},
            stream);
  });
  // The shards of a 36-layer model: matrices, each followed by two vectors.
  std::vector<AdamWShard> pieces;
  for (int64_t begin = 0; begin < n; begin += pieces.back().weight.numel()) {
    const int64_t size = std::min<int64_t>(pieces.size() % 3 == 0 ? n / 144 : 2048, n - begin);
    const auto part = [&](const Tensor& t) { return t.slice(begin, size); };
    pieces.push_back({part(weight), part(grad), part(m), part(v), part(model)});
  }
  bench.memory(fmt::format("adamw, 268M in {} pieces", pieces.size()), n * 30, [&] {
    ops.run(op::AdamWStep{.shards = pieces, .grad_scale = scale, .how = {.learning_rate = 1e-4f, .weight_decay = 0.1f}},
            stream);
  });
  bench.memory("sum_of_squares, 268M", n * 4, [&] { ops.run(op::SumOfSquares{.xs = {grad}, .bins = bins}, stream); });
  bench.memory("fill fp32, 268M", n * 4, [&] { ops.run(op::Fill{m, 0}, stream); });
  bench.memory("convert fp32 -> bf16, 268M", n * 6, [&] { ops.run(op::Convert{weight, model}, stream); });
}

void products(Bench& bench) {
  Ops& ops = *bench.ops;
  Stream& stream = *bench.stream;
  constexpr DType T = DType::bf16;
  fmt::print("\n{:<46} {:>9} {:>9} {:>8} {:>9} {:>10}\n", "product", "ms", "TFLOP/s", "of peak", "cuBLASLt", "of it");
  const auto product = [&](const std::string& name, Tensor a, Tensor b, Tensor c, test::MatmulOptions how,
                           Tensor bias = {}) {
    const int64_t k = how.transpose_a ? a.rows() : a.cols();
    const auto alone = cublaslt_gemm(a, b, c, how, stream);
    how.bias = bias;
    bench.arithmetic(name, 2.0 * static_cast<double>(c.numel()) * static_cast<double>(k),
                     [&] { ops.run(how.of(a, b, c), stream); }, {alone});
  };
  const auto layer = [&](const std::string& name, int64_t in, int64_t out) {
    const Tensor x = bench.tensor(T, {kRows, in}), w = bench.tensor(T, {out, in}), y = bench.tensor(T, {kRows, out});
    const Tensor dw = bench.tensor(DType::f32, {out, in}), bias = bench.tensor(T, {out});
    product(name + " forward, bias", x, w, y, {.transpose_b = true}, bias);
    product(name + " backward_input", y, w, x, {});
    product(name + " backward_weight, fp32 +=", y, x, dw, {.transpose_a = true, .accumulate = true});
  };
  layer("qkv 2048 -> 6144", kHidden, 3 * kHidden);
  layer("proj 2048 -> 2048", kHidden, kHidden);
  layer("fc1 2048 -> 8192", kHidden, kFfn);
  layer("fc2 8192 -> 2048", kFfn, kHidden);

  fmt::print("\n{:<46} {:>9} {:>9} {:>8} {:>9} {:>10}\n", "product with an epilogue", "ms", "TFLOP/s", "of peak",
             "two ops", "two / one");
  const Tensor x = bench.tensor(T, {kRows, kHidden}), u = bench.tensor(T, {kRows, kFfn});
  const Tensor y = bench.tensor(T, {kRows, kFfn}), bias = bench.tensor(T, {kFfn});
  const Tensor up = bench.tensor(T, {kFfn, kHidden}), down = bench.tensor(T, {kHidden, kFfn});
  const double operations = 2.0 * static_cast<double>(kRows * kHidden * kFfn);
  bench.arithmetic(
      "fc1 forward, bias, GELU", operations,
      [&] {
        ops.run(op::Matmul{.a = x, .b = up, .c = y, .transpose_b = true, .bias = bias, .pre_activation = u}, stream);
      },
      {[&] {
        ops.run(op::Matmul{.a = x, .b = up, .c = u, .transpose_b = true, .bias = bias}, stream);
        ops.run(op::ActivationForward{u, y}, stream);
      }});
  const Tensor dw = bench.tensor(DType::f32, {kFfn, kHidden}), dbias = bench.tensor(DType::f32, {kFfn});
  const auto weight = [&](Tensor bias_grad) {
    ops.run(op::Matmul{.a = y, .b = x, .c = dw, .transpose_a = true, .accumulate = true, .bias_grad = bias_grad},
            stream);
  };
  bench.arithmetic("fc1 backward_weight, bias gradient", operations, [&] { weight(dbias); }, {[&] {
                     weight({});
                     ops.run(op::ColumnSum{y, dbias}, stream);
                   }});
  const Tensor z = bench.tensor(T, {kRows, kHidden}), short_bias = bench.tensor(T, {kHidden});
  op::Matmul whole{.a = y, .b = down, .c = z, .transpose_b = true, .bias = short_bias, .residual = x};
  op::Matmul bare = whole;
  bare.bias = bare.residual = Tensor{};
  bench.arithmetic("fc2 forward, bias, residual", operations, [&] { ops.run(whole, stream); }, {[&] {
                     ops.run(bare, stream);
                     ops.run(residual_of(whole), stream);
                   }});
  bench.arithmetic("fc2 backward_input, GELU's derivative", operations,
                   [&] { ops.run(op::Matmul{.a = x, .b = down, .c = y, .activation_backward = u}, stream); }, {[&] {
                     ops.run(op::Matmul{.a = x, .b = down, .c = y}, stream);
                     ops.run(op::ActivationBackward{.x = u, .dy = y, .dx = y}, stream);
                   }});
}

// The linear layers of Llama 3.1 8B at 8,192 tokens: FP8 GEMMs, transposes included, against bf16 GEMMs; and the FP8
// GEMMs with the quantisation of the one operand that is not quantised before. Weights are quantised once per step, and
// a gradient once for both of its GEMMs; with block scales both operands are quantised again for the weight's gradient.
void products_in_fp8(Bench& bench, bool blocks) {
  Ops& ops = *bench.ops;
  Stream& stream = *bench.stream;
  constexpr int64_t kTokens = 8192, kWidth = 4096, kInner = 14336;
  struct Quantised {
    Tensor x, values, scale, amax;  // amax: null with block scales
  };
  const auto quantise = [&](const Quantised& q) {
    if (q.amax) ops.run(op::Amax{q.x, q.amax}, stream);
    ops.run(op::Quantize{q.x, q.amax, q.values, q.scale}, stream);
  };
  const auto make = [&](const Tensor& x, DType format, Shape scales) {
    const auto of = [&](Shape shape) { return bench.tensor(DType::f32, shape); };
    const Tensor values = bench.tensor(format, x.shape);
    const Quantised q{x, values, of(blocks ? scales : Shape{1}), blocks ? Tensor{} : of({1})};
    quantise(q);
    return q;
  };
  fmt::print("\n{:<46} {:>9} {:>9} {:>8} {:>9} {:>10} {:>9} {:>10}\n", "product in FP8", "ms", "TFLOP/s", "of bf16's",
             "in bf16", "bf16 / it", "quantised", "/ it");
  const auto product = [&](const std::string& name, const Quantised& a, const Quantised& b,
                           const std::vector<Quantised>& quantised, Tensor c, const test::MatmulOptions& how) {
    op::Matmul in_fp8 = how.of(a.values, b.values, c);
    in_fp8.scales = {a.scale, b.scale};
    const int64_t k = how.transpose_a ? a.x.rows() : a.x.cols();
    bench.arithmetic(name, 2.0 * static_cast<double>(c.numel()) * static_cast<double>(k),
                     [&] { ops.run(in_fp8, stream); },
                     {[&] { ops.run(how.of(a.x, b.x, c), stream); },
                      [&] {
                        for (const Quantised& q : quantised) quantise(q);
                        ops.run(in_fp8, stream);
                      }});
  };
  const auto layer = [&](const std::string& name, int64_t in, int64_t out) {
    const auto matrix = [&](int64_t rows, int64_t columns) { return bench.tensor(DType::bf16, {rows, columns}); };
    const DType narrow = DType::e4m3, wide = blocks ? narrow : DType::e5m2;
    const int64_t in_blocks = in / 128, out_blocks = out / 128, token_blocks = kTokens / 128;
    const Quantised x = make(matrix(kTokens, in), narrow, {kTokens, 1, in_blocks});
    const Quantised w = make(matrix(out, in), narrow, {1, out_blocks, in_blocks});
    const Quantised dy = make(matrix(kTokens, out), wide, {kTokens, 1, out_blocks});
    product(name + " forward", x, w, {x}, bench.tensor(DType::bf16, {kTokens, out}), {.transpose_b = true});
    product(name + " backward_input", dy, w, {dy}, bench.tensor(DType::bf16, {kTokens, in}), {});
    const Quantised again_x = blocks ? make(x.x, narrow, {1, token_blocks, in}) : x;
    const Quantised again_dy = blocks ? make(dy.x, narrow, {1, token_blocks, out}) : dy;
    product(name + " backward_weight, fp32 +=", again_dy, again_x,
            blocks ? std::vector{again_x, again_dy} : std::vector{x}, bench.tensor(DType::f32, {out, in}),
            {.transpose_a = true, .accumulate = true});
  };
  layer("qkv 4096 -> 6144", kWidth, kWidth + 2 * 1024);
  layer("proj 4096 -> 4096", kWidth, kWidth);
  layer("fc1 4096 -> 28672", kWidth, 2 * kInner);
  layer("fc2 14336 -> 4096", kInner, kWidth);
}

// FLOPs of the causal half only: 2 GEMMs forward, 5 backward. The kernels for all GPUs are timed for comparison.
void attention(Bench& bench, int64_t s, int64_t b, int64_t heads, int64_t d) {
  Ops& ops = *bench.ops;
  Stream& stream = *bench.stream;
  const DType T = DType::bf16;
  const Tensor qkv = bench.tensor(T, {s, b, 3 * heads * d}), out = bench.tensor(T, {s, b, heads * d});
  const Tensor dout = bench.tensor(T, {s, b, heads * d}), dqkv = bench.tensor(T, {s, b, 3 * heads * d});
  const Tensor lse = bench.tensor(DType::f32, {b, heads, s});
  const double product = static_cast<double>(b * heads * s * s * d);
  const Tensor sample = bench.tensor(DType::i64, {1});
  const std::string shape = fmt::format("s {} b {} heads {} d {}", s, b, heads, d);
  const std::unique_ptr<Ops> older = create_cuda_ops(*bench.device, {.hopper_attention = false});
  const QkvViews x = qkv_views(qkv, heads, heads), dx = qkv_views(dqkv, heads, heads);
  const auto row = [&](const std::string& name, double operations, const AnyOp& op) {
    bench.arithmetic(name + shape, operations, [&] { ops.run(op, stream); }, {[&] { older->run(op, stream); }});
  };
  for (const float probability : {0.0f, 0.1f}) {
    const Dropout dropout{
        .probability = probability, .seed = 1, .first_sample = sample, .seq_length = s, .total_heads = heads};
    const std::string name = probability > 0 ? "dropout, " : "attention_";
    row(name + "forward ", 2 * product, op::AttentionForward{.qkv = x, .out = out, .lse = lse, .dropout = dropout});
    row(name + "backward ", 5 * product,
        op::AttentionBackward{.dout = dout, .qkv = x, .out = out, .lse = lse, .dqkv = dx, .dropout = dropout});
  }
  // Documents of length s/8: an eighth of the FLOPs.
  std::vector<int32_t> at(static_cast<size_t>(s * b));
  for (int64_t i = 0; i < s * b; ++i) at[static_cast<size_t>(i)] = static_cast<int32_t>(i / b / (s / 8) * (s / 8));
  const DocumentStarts eight{.starts = bench.tensor(DType::i32, {s, b})};
  bench.device->copy_to_device(at.data(), eight.starts, stream);
  stream.synchronize();
  row("8 documents, forward ", product / 4, op::AttentionForward{.qkv = x, .out = out, .lse = lse, .documents = eight});
  row("8 documents, backward ", product / 8 * 5,
      op::AttentionBackward{.dout = dout, .qkv = x, .out = out, .lse = lse, .dqkv = dx, .documents = eight});
}

}  // namespace
}  // namespace trivet

int main(int argc, char** argv) {
  using namespace trivet;
  try {
    const bool blocks = argc > 1 && std::string_view(argv[1]) == "blocks";
    const bool fp8 = blocks || (argc > 1 && std::string_view(argv[1]) == "fp8");
    Bench bench(argc > 1 && !fp8 ? std::atof(argv[1]) : 989.4);
    if (fp8) return products_in_fp8(bench, blocks), 0;
    activations(bench);
    head_and_optimizer(bench);
    products(bench);
    fmt::print("\n{:<46} {:>9} {:>9} {:>8} {:>9} {:>10}\n", "attention", "ms", "TFLOP/s", "of peak", "older", "of it");
    attention(bench, 1024, 32, 12, 64);
    attention(bench, 2048, 16, 16, 128);
    attention(bench, 8192, 4, 16, 128);
    attention(bench, 2048, 16, 32, 80);
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "cuda_ops_bench: {}\n", error.what());
    return error.exit_code();
  }
}
