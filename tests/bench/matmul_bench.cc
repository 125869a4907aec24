// Every matrix product of a GPT-2 124M step (4096 tokens a micro-batch), and attention, beside their floor: FLOPs at
// the peak, which is the best product of kernels/cpu/gemm_peak.cc, measured here with the same threads. Where the build
// has found oneDNN, its time for the same product stands beside ours, and its time over ours: this table is why the
// project multiplies with its own kernels. oneDNN is used here only.
//
//     matmul_bench [--dtype fp32|bf16] [--threads N] [--only NAME]     without them: both types, one thread and all
//
// Times are the best of a few, ours and oneDNN's in turn. Attention counts the scores below the diagonal, two products
// forward and four backward; the fifth, which makes the scores again, is not counted.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fmt/core.h>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/arena.h"
#include "kernels/ops.h"
#include "tests/bench/onednn_gemm.h"
#include "tests/support/matmul_options.h"

namespace trivet {
namespace {

constexpr int64_t kSeq = 1024, kBatch = 4, kTokens = kSeq * kBatch, kHidden = 768, kHeads = 12, kLayers = 12;

struct Linear {
  const char* name;
  int64_t out, in;
  int64_t calls;  // a step
};
constexpr Linear kLinears[] = {{"qkv", 3 * kHidden, kHidden, kLayers},
                               {"proj", kHidden, kHidden, kLayers},
                               {"fc1", 4 * kHidden, kHidden, kLayers},
                               {"fc2", kHidden, 4 * kHidden, kLayers},
                               {"head", 50304, kHidden, 1}};

double seconds_of(const std::function<void()>& work) {
  const int64_t start = now_ns();
  work();
  return static_cast<double>(now_ns() - start) * 1e-9;
}

// The best times of two ways to do the same, in turn: at least three each, at most 25 or a second. `other` may be null,
// its time is 0 then.
struct Best {
  double ours, other;
};
Best best_of(const std::function<void()>& ours, const std::function<void()>& other) {
  Best best{1e30, other ? 1e30 : 0};
  double spent = 0;
  for (int run = 0; run < 3 || (run < 25 && spent < 1); ++run) {
    const double a = seconds_of(ours), b = other ? seconds_of(other) : 0;
    best = {std::min(best.ours, a), std::min(best.other, b)};
    spent += a + b;
  }
  return best;
}

class Bench {
 public:
  Bench(DType dtype, int threads, std::string only)
      : dtype_(dtype), threads_(threads), only_(std::move(only)), ops_(create_cpu_ops(threads)) {
    peak_ = measure_gemm_peak_tflops(*device_, *ops_, dtype);
    fmt::print("{}, {} threads, peak {:.3f} TFLOP/s\n{:<28} {:>6} {:>6} {:>6} {:>9} {:>9} {:>8} {:>8}", name_of(dtype),
               threads, peak_, "", "m", "n", "k", "ms", "floor ms", "TFLOP/s", "of peak");
    if (kOneDnn) fmt::print(" {:>11} {:>12}", "oneDNN ms", "oneDNN/ours");
    fmt::print("\n");
  }

  void run() {
    for (const Linear& linear : kLinears) {
      if (std::string(linear.name).find(only_) == std::string::npos) continue;
      Arena arena(*device_, "bench");
      const Tensor x = tensor(arena, dtype_, {kTokens, linear.in}), y = tensor(arena, dtype_, {kTokens, linear.out});
      const Tensor weight = tensor(arena, dtype_, {linear.out, linear.in});
      const Tensor gradient = tensor(arena, DType::f32, {linear.out, linear.in});
      row(linear, " forward", x, weight, y, {.transpose_b = true});
      row(linear, " backward input", y, weight, x, {});
      ops_->run(op::Fill{x, 0.01f}, *stream_);  // it was a result
      row(linear, " backward weight", y, x, gradient, {.transpose_a = true, .accumulate = true});
    }
    if (std::string("attention").find(only_) != std::string::npos) attention();
    const double floor = step_flops_ / peak_ * 1e-12;
    fmt::print("{:<28} {:>20} {:>9.1f} {:>9.1f} {:>8.3f} {:>8.3f}\n", "all calls of a step", "", step_seconds_ * 1e3,
               floor * 1e3, step_flops_ / step_seconds_ * 1e-12, floor / step_seconds_);
    if (kOneDnn && onednn_.other > 0)
      fmt::print("{:<28} {:>20} {:>9.1f} {:>27} {:>20.1f} {:>12.3f}\n", "  of these, products", "", onednn_.ours * 1e3,
                 "", onednn_.other * 1e3, onednn_.other / onednn_.ours);
    fmt::print("\n");
  }

 private:
  Tensor tensor(Arena& arena, DType dtype, Shape shape) {
    const Tensor t = arena.allocate(dtype, shape);
    ops_->run(op::Fill{t, 0.01f}, *stream_);
    return t;
  }

  void row(const Linear& linear, const char* pass, Tensor a, Tensor b, Tensor c, const test::MatmulOptions& how) {
    const int64_t k = how.transpose_a ? a.rows() : a.cols();
    const double flops = 2.0 * static_cast<double>(c.numel()) * static_cast<double>(k);
    const Best best = best_of([&] { ops_->run(how.of(a, b, c), *stream_); }, onednn_gemm(a, b, c, how, threads_));
    print(std::string(linear.name) + pass, fmt::format("{:>6} {:>6} {:>6}", c.rows(), c.cols(), k), flops, best,
          linear.calls);
  }

  void attention() {
    Arena arena(*device_, "attention");
    const Tensor qkv = tensor(arena, dtype_, {kSeq, kBatch, 3 * kHidden}), dqkv = tensor(arena, dtype_, qkv.shape);
    const Tensor out = tensor(arena, dtype_, {kSeq, kBatch, kHidden}), dout = tensor(arena, dtype_, out.shape);
    const Tensor lse = tensor(arena, DType::f32, {kBatch, kHeads, kSeq});
    const Dropout tenth{.probability = 0.1f,
                        .seed = 1,
                        .first_sample = arena.allocate(DType::i64, {1}),
                        .seq_length = kSeq,
                        .total_heads = kHeads};
    ops_->run(op::Fill{tenth.first_sample, 0}, *stream_);
    const double product = 2.0 * kSeq * (kSeq + 1) / 2 * kHidden * kBatch;
    const auto row = [&](const char* name, double products, const AnyOp& op, int calls) {
      print(name, fmt::format("{:>20}", "s 1024, 48 heads"), products * product,
            best_of([&] { ops_->run(op, *stream_); }, nullptr), calls);
    };
    const QkvViews x = qkv_views(qkv, kHeads, kHeads), dx = qkv_views(dqkv, kHeads, kHeads);
    op::AttentionForward forward{.qkv = x, .out = out, .lse = lse};
    op::AttentionBackward backward{.dout = dout, .qkv = x, .out = out, .lse = lse, .dqkv = dx};
    row("attention forward", 2, forward, kLayers);
    row("attention backward", 4, backward, kLayers);
    forward.dropout = backward.dropout = tenth;
    row("  forward, dropout 0.1", 2, forward, 0);
    row("  backward, dropout 0.1", 4, backward, 0);
  }

  void print(const std::string& name, const std::string& sizes, double flops, const Best& best, int64_t calls) {
    const double floor = flops / peak_ * 1e-12;
    fmt::print("{:<28} {} {:>9.3f} {:>9.3f} {:>8.3f} {:>8.3f}", name, sizes, best.ours * 1e3, floor * 1e3,
               flops / best.ours * 1e-12, floor / best.ours);
    if (best.other > 0) fmt::print(" {:>11.3f} {:>12.3f}", best.other * 1e3, best.other / best.ours);
    fmt::print("\n");
    std::fflush(stdout);
    const auto times = static_cast<double>(calls);
    step_flops_ += flops * times;
    step_seconds_ += best.ours * times;
    if (best.other > 0) onednn_ = {onednn_.ours + best.ours * times, onednn_.other + best.other * times};
  }

  DType dtype_;
  int threads_;
  std::string only_;
  std::unique_ptr<Device> device_ = create_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->create_compute_stream();
  std::unique_ptr<Ops> ops_;
  double peak_ = 0, step_flops_ = 0, step_seconds_ = 0;
  Best onednn_{0, 0};  // of a step's products, where oneDNN does them too
};

}  // namespace
}  // namespace trivet

int main(int argc, char** argv) {
  using namespace trivet;
  std::vector<DType> dtypes{DType::f32, DType::bf16};
  std::vector<int> threads{1};
  if (const auto cores = static_cast<int>(std::thread::hardware_concurrency()); cores > 1) threads.push_back(cores);
  std::string only;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!std::strcmp(argv[i], "--dtype")) dtypes = {!std::strcmp(argv[i + 1], "fp32") ? DType::f32 : DType::bf16};
    else if (!std::strcmp(argv[i], "--threads")) threads = {std::atoi(argv[i + 1])};
    else if (!std::strcmp(argv[i], "--only")) only = argv[i + 1];
    else return fmt::print(stderr, "matmul_bench: unknown option {}\n", argv[i]), 64;
  }
  for (const DType dtype : dtypes)
    for (const int n : threads) Bench(dtype, n, only).run();
}
