// Every GEMM of a GPT-2 124M step (4096 tokens per micro-batch), and attention, against their floor: FLOPs at the peak,
// which is the best GEMM of kernels/cpu/gemm_peak.cc, measured here with the same threads. If the build has found
// oneDNN or OpenBLAS, the library's time for the same GEMM is printed as a ratio to ours: above 1, ours is faster. The
// libraries are used only here.
//
//     matmul_bench [--dtype fp32|bf16] [--threads N] [--only NAME] [--isa portable|avx2|avx512|avx512_bf16|amx]
//
// Without options: both dtypes, one thread and all threads, the machine's best instruction set.
// Times are the best of a few runs, ours and theirs alternating. Attention counts the scores below the diagonal: two
// GEMMs forward and four backward. The fifth, which recomputes the scores, is not counted.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <fmt/core.h>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/base/arena.h"
#include "kernels/ops.h"
#include "tests/bench/onednn_gemm.h"
#include "tests/bench/openblas_gemm.h"
#include "tests/bench/support.h"
#include "tests/support/matmul_options.h"

namespace trivet {
namespace {

constexpr int64_t kSeq = 1024, kBatch = 4, kTokens = kSeq * kBatch, kHidden = 768, kHeads = 12, kLayers = 12;

struct Linear {
  const char* name;
  int64_t out, in;
  int64_t calls;  // per step
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

// The best times of several ways to do the same work, run alternately: each at least three times, at most 25 times or
// for a second. A way may be null; its time is then 0. The first way is ours.
constexpr size_t kWays = 3;
using Ways = std::array<std::function<void()>, kWays>;
using Times = std::array<double, kWays>;
constexpr const char* kNames[kWays] = {"", "oneDNN", "OpenBLAS"};

Times best_of(const Ways& ways) {
  Times best{};
  double spent = 0;
  for (int run = 0; run < 3 || (run < 25 && spent < kWays); ++run)
    for (size_t i = 0; i < kWays; ++i) {
      if (!ways[i]) continue;
      const double seconds = seconds_of(ways[i]);
      best[i] = best[i] == 0 ? seconds : std::min(best[i], seconds);
      spent += seconds;
    }
  return best;
}

class Bench {
 public:
  Bench(DType dtype, int threads, std::string only, CpuIsa isa)
      : dtype_(dtype), threads_(threads), only_(std::move(only)), ops_(create_cpu_ops(threads, isa)) {
    peak_ = measure_gemm_peak(*device_, *ops_, dtype).tflops;
    fmt::print("{}, {}, {} threads, peak {:.3f} TFLOP/s\n{:<28} {:>6} {:>6} {:>6} {:>9} {:>9} {:>8} {:>8}",
               name_of(dtype), name_of(isa), threads, peak_, "", "m", "n", "k", "ms", "floor ms", "TFLOP/s", "of peak");
    if (kOneDnn) fmt::print(" {:>13}", "oneDNN/ours");
    if (kOpenBlas) fmt::print(" {:>13}", "OpenBLAS/ours");
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
      ops_->run(op::Fill{x, 0.01f}, *stream_);  // the row above overwrote it
      row(linear, " backward weight", y, x, gradient, {.transpose_a = true, .accumulate = true});
    }
    if (std::string("attention").find(only_) != std::string::npos) attention();
    const double floor = step_flops_ / peak_ * 1e-12;
    fmt::print("{:<28} {:>20} {:>9.1f} {:>9.1f} {:>8.3f} {:>8.3f}\n", "all calls of a step", "", step_seconds_ * 1e3,
               floor * 1e3, step_flops_ / step_seconds_ * 1e-12, floor / step_seconds_);
    for (size_t i = 1; i < kWays; ++i)
      if (theirs_[i] > 0)
        fmt::print("{:<28} {:>20} {:>9.1f} {:>9.1f} {:>8} {:>8.3f}\n", fmt::format("GEMMs, by {}", kNames[i]), "",
                   theirs_[i] * 1e3, gemm_floor_ * 1e3, "", gemm_floor_ / theirs_[i]);
    if (gemm_seconds_ > 0)
      fmt::print("{:<28} {:>20} {:>9.1f} {:>9.1f} {:>8} {:>8.3f}\n", "GEMMs, ours", "", gemm_seconds_ * 1e3,
                 gemm_floor_ * 1e3, "", gemm_floor_ / gemm_seconds_);
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
    const Times best = best_of({[&] { ops_->run(how.of(a, b, c), *stream_); }, onednn_gemm(a, b, c, how, threads_),
                                openblas_gemm(a, b, c, how, threads_)});
    print(std::string(linear.name) + pass, fmt::format("{:>6} {:>6} {:>6}", c.rows(), c.cols(), k), flops, best,
          linear.calls);
    const auto calls = static_cast<double>(linear.calls);
    gemm_seconds_ += calls * best[0], gemm_floor_ += calls * flops / peak_ * 1e-12;
    for (size_t i = 1; i < kWays; ++i) theirs_[i] += calls * best[i];
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
            best_of({[&] { ops_->run(op, *stream_); }}), calls);
    };
    const QkvViews x = qkv_views(qkv, kHeads, kHeads), dx = qkv_views(dqkv, kHeads, kHeads);
    op::AttentionForward forward{.qkv = x, .out = out, .lse = lse};
    op::AttentionBackward backward{.dout = dout, .qkv = x, .out = out, .lse = lse, .dqkv = dx};
    row("attention forward", 2, forward, kLayers);
    row("attention backward", 4, backward, kLayers);
    forward.dropout = backward.dropout = tenth;
    row("  forward, dropout 0.1", 2, forward, 0);
    row("  backward, dropout 0.1", 4, backward, 0);
    documents(kSeq, kBatch);
    documents(8 * kSeq, 1);
  }

  // Eight documents against one, run alternately: an eighth of the scores.
  void documents(int64_t s, int64_t b) {
    Arena arena(*device_, "documents");
    const Tensor qkv = tensor(arena, dtype_, {s, b, 3 * kHidden}), dqkv = tensor(arena, dtype_, qkv.shape);
    const Tensor out = tensor(arena, dtype_, {s, b, kHidden}), dout = tensor(arena, dtype_, out.shape);
    const Tensor lse = tensor(arena, DType::f32, {b, kHeads, s}), starts = arena.allocate(DType::i32, {s, b});
    for (int64_t i = 0; i < s * b; ++i) starts.as<int32_t>()[i] = static_cast<int32_t>(i / b / (s / 8) * (s / 8));
    const QkvViews x = qkv_views(qkv, kHeads, kHeads), dx = qkv_views(dqkv, kHeads, kHeads);
    op::AttentionForward forward{.qkv = x, .out = out, .lse = lse, .documents = {.starts = starts}}, of_one = forward;
    op::AttentionBackward backward{
        .dout = dout, .qkv = x, .out = out, .lse = lse, .dqkv = dx, .documents = {.starts = starts}};
    op::AttentionBackward backward_of_one = backward;
    of_one.documents = backward_of_one.documents = {};
    const auto ratio = [&](const AnyOp& many, const AnyOp& one) {
      const Times best = best_of({[&] { ops_->run(many, *stream_); }, [&] { ops_->run(one, *stream_); }});
      return best[0] / best[1];
    };
    fmt::print("  documents of s/8, s {} b {}: {:.3f} of the time of one document forward, {:.3f} backward\n", s, b,
               ratio(forward, of_one), ratio(backward, backward_of_one));
  }

  void print(const std::string& name, const std::string& sizes, double flops, const Times& best, int64_t calls) {
    const double floor = flops / peak_ * 1e-12;
    fmt::print("{:<28} {} {:>9.3f} {:>9.3f} {:>8.3f} {:>8.3f}", name, sizes, best[0] * 1e3, floor * 1e3,
               flops / best[0] * 1e-12, floor / best[0]);
    for (size_t i = 1; i < kWays; ++i)
      if (best[i] > 0) fmt::print(" {:>13.3f}", best[i] / best[0]);
    fmt::print("\n");
    std::fflush(stdout);
    const auto times = static_cast<double>(calls);
    step_flops_ += flops * times;
    step_seconds_ += best[0] * times;
  }

  DType dtype_;
  int threads_;
  std::string only_;
  std::unique_ptr<Device> device_ = create_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->create_compute_stream();
  std::unique_ptr<Ops> ops_;
  double peak_ = 0, step_flops_ = 0, step_seconds_ = 0;
  double gemm_seconds_ = 0, gemm_floor_ = 0;  // all GEMMs of a step
  Times theirs_{};
};

}  // namespace
}  // namespace trivet

int main(int argc, char** argv) {
  using namespace trivet;
  answer_help(argc, argv, " [--dtype fp32|bf16] [--threads N] [--only NAME] [--isa NAME]");
  std::vector<DType> dtypes{DType::f32, DType::bf16};
  std::vector<int> threads{1};
  if (const auto cores = static_cast<int>(std::thread::hardware_concurrency()); cores > 1) threads.push_back(cores);
  std::string only;
  CpuIsa isa = best_cpu_isa();
  for (int i = 1; i < argc; i += 2) {
    const std::string_view key = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    const auto named = std::ranges::find(kCpuIsaNames, value);
    if (key == "--dtype" && (value == "fp32" || value == "bf16")) dtypes = {value == "fp32" ? DType::f32 : DType::bf16};
    else if (key == "--threads" && std::atoi(value.data()) > 0) threads = {std::atoi(value.data())};
    else if (key == "--only" && !value.empty()) only = value;
    else if (key == "--isa" && named != kCpuIsaNames.end()) isa = static_cast<CpuIsa>(named - kCpuIsaNames.begin());
    else return fmt::print(stderr, "matmul_bench: {} {}: unknown, see the top of its source\n", key, value), 64;
  }
  try {
    for (const DType dtype : dtypes)
      for (const int n : threads) Bench(dtype, n, only, isa).run();
  } catch (const Error& error) {
    fmt::print(stderr, "matmul_bench: {}\n", error.what());
    return error.exit_code();
  }
}
