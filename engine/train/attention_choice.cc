#include "engine/train/attention_choice.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>

#include "engine/train/rank_state.h"
#include "kernels/base/arena.h"

namespace trivet {
namespace {

constexpr const char* kOwn = "own kernels";
constexpr const char* kCudnn = "cuDNN";

// Nanoseconds of a forward and a backward pass, the fastest of a few. Warm-up passes load kernels, allocate workspace
// and raise the GPU's clock. The time does not depend on the values.
int64_t time_attention(Device& device, Ops& ops, const AttentionShape& z) {
  constexpr int kRuns = 5;
  constexpr int64_t kWarmUp = 100'000'000;
  const auto stream = device.create_compute_stream();
  Arena arena(device, "attention trial");
  const int64_t s = z.q.s, b = z.q.b, heads = z.q.heads(), kv_heads = z.q.groups, d = z.q.d;
  const Shape wide{s, b, (heads + 2 * kv_heads) * d}, narrow{s, b, heads * d};
  const Tensor qkv = arena.allocate(z.dtype, wide), dqkv = arena.allocate(z.dtype, wide);
  const Tensor out = arena.allocate(z.dtype, narrow), dout = arena.allocate(z.dtype, narrow);
  const Tensor lse = arena.allocate(DType::f32, {b, heads, s});
  const QkvViews x = qkv_views(qkv, heads, kv_heads), dx = qkv_views(dqkv, heads, kv_heads);
  ops.run(op::Fill{qkv, 0.5f}, *stream);
  ops.run(op::Fill{dout, 0.25f}, *stream);
  const auto run = [&] {
    const int64_t start = now_ns();
    ops.run(op::AttentionForward{.qkv = x, .out = out, .lse = lse}, *stream);
    ops.run(op::AttentionBackward{.dout = dout, .qkv = x, .out = out, .lse = lse, .dqkv = dx}, *stream);
    stream->synchronize();
    return now_ns() - start;
  };
  run();
  for (const int64_t end = now_ns() + kWarmUp; now_ns() < end;) run();
  int64_t best = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kRuns; ++i) best = std::min(best, run());
  return best;
}

}  // namespace

AttentionShape attention_shape_of(const Config& config) {
  const AttentionSpec model = model_spec_of(config.model).attention;
  const int64_t t = config.parallel.tensor_model_parallel_size;
  return packed_attention(config.model.seq_length, config.batch.micro_batch_size, model.heads / t, model.kv_heads / t,
                          model.head_width, config.precision.dtype);
}

AttentionTrial try_attention(const Config& config, Device& device, const MakeOps& make_ops) {
  const std::optional<AttentionBackend> asked = config.model.attention_backend;
  const AttentionShape shape = attention_shape_of(config);
  const auto time_cudnn = [&] { return time_attention(device, *make_ops(shape), shape); };
  AttentionTrial trial;
  if (asked == AttentionBackend::cudnn) {
    try {
      time_cudnn();  // throws where it does not run
    } catch (const Error& error) {
      throw ConfigError(
          fmt::format("model.attention_backend: found cudnn, but {}; expected auto or flash", error.what()));
    }
    return {.own = false, .cudnn = true, .why = "as asked"};
  }
  if (asked == AttentionBackend::flash) trial.why = "as asked";
  else if (config.train.deterministic_mode) trial.why = "deterministic_mode measures nothing";
  else if (config.model.attention_dropout > 0) trial.why = "cuDNN does not have the dropout of attention_dropout";
  if (!trial.why.empty()) return trial;
  try {
    trial.cudnn_ns = time_cudnn();
  } catch (const Error& error) {
    trial.why = error.what();
    return trial;
  }
  trial.own_ns = time_attention(device, *make_ops(std::nullopt), shape);
  trial.cudnn = true;
  return trial;
}

AttentionChoice choose_attention(const AttentionTrial& trial, HostWorld& host) {
  struct Sums {
    int64_t own, cudnn;  // ranks on which it is available
    int64_t own_ns, cudnn_ns;
  };
  const Sums sums = host.sum(Sums{trial.own, trial.cudnn, trial.own_ns, trial.cudnn_ns});
  const auto ranks = static_cast<int64_t>(host.size());
  if (sums.cudnn < ranks) {
    const auto [rank, why] = host.first_text(trial.cudnn ? "" : trial.why);
    return {false, fmt::format("{}: {}", kOwn, why)};
  }
  if (sums.own < ranks) return {true, fmt::format("{}: {}", kCudnn, trial.why)};
  const bool cudnn = sums.cudnn_ns < sums.own_ns;
  const auto milliseconds = [&](int64_t ns) { return static_cast<double>(ns) * 1e-6 / static_cast<double>(ranks); };
  return {cudnn, fmt::format("{}: {:.3f} ms forward and backward, {} {:.3f} ms", cudnn ? kCudnn : kOwn,
                             milliseconds(std::min(sums.own_ns, sums.cudnn_ns)), cudnn ? kOwn : kCudnn,
                             milliseconds(std::max(sums.own_ns, sums.cudnn_ns)))};
}

}  // namespace trivet
