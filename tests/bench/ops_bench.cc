// Speed of the CPU operations at the sizes of GPT-2 124M (4096 tokens per micro-batch), against memory bandwidth: GB/s
// counts each byte that an op must read or write once, and "of copy" divides it by the GB/s of a plain copy of 256 MiB,
// measured here. An op whose tensors stay in the last-level cache may exceed 1.
//
//     ops_bench [threads]
#include <algorithm>
#include <chrono>
#include <cstring>
#include <fmt/core.h>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "kernels/base/arena.h"
#include "kernels/ops.h"

namespace trivet {
namespace {

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The best of 15 runs, fewer if they take half a second (at least three), after a warm-up run. The best run lost the
// least time to other load on the machine.
double best_seconds(const std::function<void()>& work) {
  work();
  double best = std::numeric_limits<double>::infinity(), spent = 0;
  for (int run = 0; run < 15 && (spent < 0.5 || run < 3); ++run) {
    const double seconds = seconds_of(work);
    best = std::min(best, seconds);
    spent += seconds;
  }
  return best;
}

constexpr int64_t kMemoryBytes = 256 << 20;

// Runs work(part, begin, end) on equal parts of kMemoryBytes, one per thread; returns the best time.
double on_threads(int threads, const std::function<void(int, int64_t, int64_t)>& work) {
  return best_seconds([&] {
    std::vector<std::thread> team;
    for (int t = 0; t < threads; ++t)
      team.emplace_back(work, t, kMemoryBytes / threads * t, kMemoryBytes / threads * (t + 1));
    for (std::thread& thread : team) thread.join();
  });
}

struct Bandwidth {
  double copy, read;  // bytes/s; a copied byte counts twice
};

Bandwidth measure_bandwidth(int threads, Arena& arena) {
  const Tensor from = arena.allocate(DType::u8, {kMemoryBytes}), to = arena.allocate(DType::u8, {kMemoryBytes});
  std::memset(from.data, 1, kMemoryBytes);
  std::memset(to.data, 2, kMemoryBytes);
  std::vector<uint64_t> sums(static_cast<size_t>(threads));
  const double copy = on_threads(threads, [&](int, int64_t begin, int64_t end) {
    std::memcpy(to.as<uint8_t>() + begin, from.as<uint8_t>() + begin, static_cast<size_t>(end - begin));
  });
  const double read = on_threads(threads, [&](int part, int64_t begin, int64_t end) {
    const auto* const words = static_cast<const uint64_t*>(from.data);
    uint64_t sum = 0;
    for (int64_t i = begin / 8; i < end / 8; ++i) sum += words[i];
    sums[static_cast<size_t>(part)] = sum;
  });
  if (sums[0] == 0) fail("the sum of ones is not zero");  // keeps the loop from being optimised away
  return {2.0 * static_cast<double>(kMemoryBytes) / copy, static_cast<double>(kMemoryBytes) / read};
}

class Bench {
 public:
  explicit Bench(int threads) : ops(create_cpu_ops(threads)) {
    const Bandwidth memory = measure_bandwidth(threads, arena);
    copy_ = memory.copy;
    fmt::print("{} threads; copy: {:.1f} GB/s, read: {:.1f} GB/s\n\n", threads, memory.copy / 1e9, memory.read / 1e9);
    fmt::print("{:<44} {:>8} {:>7} {:>8} {:>6}\n", "op", "ms", "GB/s", "of copy", "calls");
  }

  // A tensor of values in [-3, 3) that depend only on the index.
  Tensor tensor(DType dtype, Shape shape) {
    const Tensor t = arena.allocate(dtype, shape);
    for (int64_t i = 0; i < t.numel(); ++i) {
      const uint64_t hash = static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull;
      const float value = static_cast<float>(hash >> 40) * 0x6p-24f - 3.0f;
      if (dtype == DType::f32) t.as<float>()[i] = value;
      else if (dtype == DType::bf16) t.as<bf16>()[i] = bf16(value);
      else if (dtype == DType::i32) t.as<int32_t>()[i] = static_cast<int32_t>(hash >> 40) % 50257;
      else t.as<int64_t>()[i] = 0;
    }
    return t;
  }

  // calls: number of these calls in a GPT-2 124M step of one micro-batch; 0: not part of that step.
  void row(const char* name, int64_t bytes, int calls, const std::function<void()>& work) {
    const double seconds = best_seconds(work), rate = static_cast<double>(bytes) / seconds;
    fmt::print("{:<44} {:>8.3f} {:>7.1f} {:>8.2f} {:>6}\n", name, seconds * 1e3, rate / 1e9, rate / copy_, calls);
    total_ += calls * seconds;
  }

  void finish() const { fmt::print("\nall calls of a step together: {:.0f} ms\n", total_ * 1e3); }

  std::unique_ptr<Device> device = create_cpu_device();
  Arena arena{*device, "bench"};
  std::unique_ptr<Stream> stream = device->create_compute_stream();
  std::unique_ptr<Ops> ops;

 private:
  double copy_ = 0, total_ = 0;
};

constexpr int64_t kSeq = 1024, kBatch = 4, kRows = kSeq * kBatch, kHidden = 768, kFfn = 3072, kVocab = 50304;
constexpr int64_t kParameters = 124'475'904;
constexpr int kLayers = 12;

void activations(Bench& bench, DType dtype) {
  const int64_t size = size_of(dtype), hidden = kRows * kHidden * size, ffn = kRows * kFfn * size;
  Ops& ops = *bench.ops;
  Stream& stream = *bench.stream;
  const bool step = dtype == DType::bf16;  // calls are counted for a bf16 step
  const auto calls = [=](int n) { return step ? n : 0; };
  const auto named = [=](const char* name) { return fmt::format("{} {}", name, name_of(dtype)); };
  const Tensor x = bench.tensor(dtype, {kSeq, kBatch, kHidden}), y = bench.tensor(dtype, {kSeq, kBatch, kHidden});
  const Tensor z = bench.tensor(dtype, {kSeq, kBatch, kHidden}), bias = bench.tensor(dtype, {kHidden});
  const Tensor u = bench.tensor(dtype, {kRows, kFfn}), v = bench.tensor(dtype, {kRows, kFfn});
  const Tensor w = bench.tensor(dtype, {kRows, kFfn});
  const Tensor mean = bench.tensor(DType::f32, {kRows}), rstd = bench.tensor(DType::f32, {kRows});
  const Tensor sum = bench.tensor(DType::f32, {kFfn}), dgamma = bench.tensor(DType::f32, {kHidden});
  const Tensor tokens = bench.tensor(DType::i32, {kSeq, kBatch}), table = bench.tensor(dtype, {kVocab, kHidden});
  const Tensor dtable = bench.tensor(DType::f32, {kVocab, kHidden});
  const Tensor positions = bench.tensor(dtype, {kSeq, kHidden}), dpositions = bench.tensor(DType::f32, {kSeq, kHidden});
  const Dropout none,
      tenth{
          .probability = 0.1f, .seed = 1, .site = 2, .first_sample = bench.tensor(DType::i64, {1}), .seq_length = kSeq};

  ops.run(op::LayernormForward{.x = x, .gamma = bias, .beta = bias, .eps = 1e-5f, .y = y, .mean = mean, .rstd = rstd},
          stream);
  bench.row(named("layernorm_forward").c_str(), 2 * hidden, calls(2 * kLayers + 1), [&] {
    ops.run(op::LayernormForward{.x = x, .gamma = bias, .beta = bias, .eps = 1e-5f, .y = y, .mean = mean, .rstd = rstd},
            stream);
  });
  bench.row(named("layernorm_backward, residual").c_str(), 4 * hidden, calls(2 * kLayers + 1), [&] {
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
  bench.row(named("gelu_forward").c_str(), 2 * ffn, calls(kLayers), [&] {
    ops.run(op::ActivationForward{u, v}, stream);
  });
  bench.row(named("gelu_backward").c_str(), 3 * ffn, calls(kLayers),
            [&] { ops.run(op::ActivationBackward{.x = u, .dy = v, .dx = w}, stream); });
  // Ops of a Llama block: RMSNorm, SwiGLU to half the columns, RoPE of 12 query heads in 4 groups.
  bench.row(named("rmsnorm_forward").c_str(), 2 * hidden, 0, [&] {
    ops.run(op::LayernormForward{.x = x, .gamma = bias, .beta = {}, .eps = 1e-5f, .y = y, .mean = {}, .rstd = rstd},
            stream);
  });
  bench.row(named("rmsnorm_backward, residual").c_str(), 4 * hidden, 0, [&] {
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
  const Tensor gated = v.front({kRows, kFfn / 2});
  bench.row(named("swiglu_forward").c_str(), 3 * ffn / 2, 0, [&] {
    ops.run(op::ActivationForward{u, gated, Activation::swiglu}, stream);
  });
  bench.row(named("swiglu_backward").c_str(), 5 * ffn / 2, 0, [&] {
    ops.run(op::ActivationBackward{u, gated, w, Activation::swiglu}, stream);
  });
  const QkvViews heads = qkv_views(u.front({kSeq, kBatch, 4 * (3 + 2) * 64}), 12, 4);
  const Tensor angles = bench.tensor(DType::f32, {kSeq, 64});
  bench.row(named("rope").c_str(), 2 * kRows * 4 * (3 + 1) * 64 * size, 0,
            [&] { ops.run(op::Rope{.q = heads.q, .k = heads.k, .table = angles}, stream); });
  bench.row(named("column_sum [4096, 768]").c_str(), hidden, calls(2 * kLayers), [&] {
    ops.run(op::ColumnSum{x, dgamma}, stream);
  });
  bench.row(named("column_sum [4096, 3072]").c_str(), ffn, calls(kLayers), [&] {
    ops.run(op::ColumnSum{u, sum}, stream);
  });
  const Tensor qkv = bench.tensor(dtype, {kRows, 3 * kHidden});
  bench.row(named("column_sum [4096, 2304]").c_str(), qkv.bytes(), calls(kLayers), [&] {
    ops.run(op::ColumnSum{qkv, sum.slice(0, 3 * kHidden)}, stream);
  });
  bench.row(named("bias_dropout_add, no dropout").c_str(), 3 * hidden, calls(2 * kLayers), [&] {
    ops.run(op::BiasDropoutAdd{.x = x, .bias = bias, .residual = y, .dropout = none, .out = z}, stream);
  });
  bench.row(named("bias_dropout_add, dropout 0.1").c_str(), 3 * hidden, 0, [&] {
    ops.run(op::BiasDropoutAdd{.x = x, .bias = bias, .residual = y, .dropout = tenth, .out = z}, stream);
  });
  bench.row(named("dropout_backward, dropout 0.1").c_str(), 2 * hidden, 0,
            [&] { ops.run(op::DropoutBackward{.dout = x, .dropout = tenth, .dx = z}, stream); });
  bench.row(named("embedding_forward").c_str(), 2 * hidden, calls(1),
            [&] { ops.run(op::EmbeddingForward{.tokens = tokens, .table = table, .first_row = 0, .out = z}, stream); });
  bench.row(named("embedding_backward").c_str(), hidden + 2 * kRows * kHidden * 4, calls(1), [&] {
    ops.run(op::EmbeddingBackward{.tokens = tokens, .dout = x, .first_row = 0, .dtable = dtable}, stream);
  });
  bench.row(named("position_forward").c_str(), 2 * hidden + positions.bytes(), calls(1),
            [&] { ops.run(op::PositionForward{.x = x, .positions = positions, .dropout = none, .out = z}, stream); });
  bench.row(named("position_backward").c_str(), 2 * hidden + 2 * dpositions.bytes(), calls(1), [&] {
    ops.run(op::PositionBackward{.dout = x, .dropout = none, .dx = z, .dpositions = dpositions}, stream);
  });
  bench.row(named("add").c_str(), 3 * hidden, 0, [&] { ops.run(op::Add{x, y, z}, stream); });
}

void cross_entropy(Bench& bench, DType dtype) {
  Ops& ops = *bench.ops;
  Stream& stream = *bench.stream;
  const auto named = [=](const char* name) { return fmt::format("{} {}", name, name_of(dtype)); };
  const int calls = dtype == DType::bf16;
  const Tensor logits = bench.tensor(dtype, {kRows, kVocab}), targets = bench.tensor(DType::i32, {kRows});
  const Tensor max = bench.tensor(DType::f32, {kRows}), sum = bench.tensor(DType::f32, {kRows});
  const Tensor target = bench.tensor(DType::f32, {kRows}), loss = bench.tensor(DType::f32, {1});
  bench.row(named("cross_entropy_forward").c_str(), logits.bytes(), calls, [&] {
    ops.run(op::CrossEntropyForward{.logits = logits,
                                    .targets = targets,
                                    .first_column = 0,
                                    .vocab_size = 50257,
                                    .row_max = max,
                                    .row_sum = sum,
                                    .target_logit = target},
            stream);
  });
  bench.row("cross_entropy_loss", 3 * max.bytes(), calls, [&] {
    ops.run(
        op::CrossEntropyLoss{
            .targets = targets, .row_max = max, .row_sum = sum, .target_logit = target, .scale = 1, .loss = loss},
        stream);
  });
  // In place: with scale 1, the values written have the magnitude of probabilities in every run.
  bench.row(named("cross_entropy_backward").c_str(), 2 * logits.bytes(), calls, [&] {
    ops.run(op::CrossEntropyBackward{.logits = logits,
                                     .targets = targets,
                                     .first_column = 0,
                                     .vocab_size = 50257,
                                     .row_max = max,
                                     .row_sum = sum,
                                     .scale = 1},
            stream);
  });
}

void optimizer(Bench& bench) {
  Ops& ops = *bench.ops;
  Stream& stream = *bench.stream;
  const auto flat = [&](DType dtype) { return bench.tensor(dtype, {kParameters}); };
  const Tensor weight = flat(DType::f32), grad = flat(DType::f32), m = flat(DType::f32), v = flat(DType::f32);
  const Tensor model_weight = flat(DType::bf16), scale = bench.tensor(DType::f32, {1});
  const Tensor bins = bench.tensor(DType::i64, {kExactSumBins});
  ops.run(op::Fill{m, 0}, stream);
  ops.run(op::Fill{v, 0}, stream);
  ops.run(op::Fill{scale, 1}, stream);
  const int64_t n = kParameters;
  bench.row("adamw, 124M", n * (4 * 4 + 3 * 4 + 2), 1, [&] {
    ops.run(op::AdamWStep{.shards = {{weight, grad, m, v, model_weight}},
                          .grad_scale = scale,
                          .how = {.learning_rate = 1e-4f, .weight_decay = 0.1f}},
            stream);
  });
  // Shards as in the model: 12 layers of 4 matrices, each followed by 2 vectors.
  std::vector<AdamWShard> pieces;
  for (int64_t begin = 0; begin < n; begin += pieces.back().weight.numel()) {
    const int64_t size = std::min<int64_t>(pieces.size() % 3 == 0 ? n / 48 : 768, n - begin);
    const auto part = [&](const Tensor& t) { return t.slice(begin, size); };
    pieces.push_back({part(weight), part(grad), part(m), part(v), part(model_weight)});
  }
  const AdamW how{.learning_rate = 1e-4f, .weight_decay = 0.1f};
  bench.row(fmt::format("adamw, 124M in {} pieces", pieces.size()).c_str(), n * 30, 0,
            [&] { ops.run(op::AdamWStep{.shards = pieces, .grad_scale = scale, .how = how}, stream); });
  bench.row("  one by one", n * 30, 0, [&] {
    for (const AdamWShard& piece : pieces)
      ops.run(op::AdamWStep{.shards = {piece}, .grad_scale = scale, .how = how}, stream);
  });
  bench.row("sum_of_squares, 124M", n * 4, 1, [&] { ops.run(op::SumOfSquares{.xs = {grad}, .bins = bins}, stream); });
  // A wide range of magnitudes: the squares in one block span more than 70 bits.
  for (int64_t i = 0; i < n; ++i) grad.as<float>()[i] *= weight.as<float>()[i] * 1e-4f * grad.as<float>()[i];
  bench.row("sum_of_squares, 124M, a wide range", n * 4, 0,
            [&] { ops.run(op::SumOfSquares{.xs = {grad}, .bins = bins}, stream); });
  bench.row("fill fp32, 124M", n * 4, 1, [&] { ops.run(op::Fill{m, 0}, stream); });
  bench.row("convert fp32 -> bf16, 124M", n * 6, 0, [&] { ops.run(op::Convert{weight, model_weight}, stream); });
  bench.row("convert bf16 -> fp32, 124M", n * 6, 0, [&] { ops.run(op::Convert{model_weight, m}, stream); });
  bench.row("convert fp32 -> fp32, 124M", n * 8, 0, [&] { ops.run(op::Convert{weight, m}, stream); });
}

}  // namespace
}  // namespace trivet

int main(int argc, char** argv) {
  using namespace trivet;
  const int threads = argc > 1 ? std::atoi(argv[1]) : static_cast<int>(std::thread::hardware_concurrency());
  Bench bench(threads);
  for (const DType dtype : {DType::bf16, DType::f32}) activations(bench, dtype);
  cross_entropy(bench, DType::bf16);
  optimizer(bench);
  bench.finish();
}
