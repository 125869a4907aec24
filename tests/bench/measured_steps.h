// Times a trainer's steps, with the spans of the rank's streams. On a GPU, steps are queued ahead, as in
// `trivet train`.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/metrics/step_stats.h"
#include "engine/train/trainer.h"
#include "kernels/base/arena.h"
#include "kernels/ops.h"

namespace trivet {

// Peak TFLOP/s of GEMMs in `dtype`. On a GPU: of a GEMM with `size` rows, which must be large enough, on random
// numbers, because a GPU is faster on constant ones.
inline double product_peak_tflops(Device& device, Ops& ops, DType dtype, int64_t size) {
  if (device.kind() == DeviceKind::cpu) return measure_gemm_peak(device, ops, dtype).tflops;
  constexpr int kRounds = 5, kProducts = 8;
  const auto stream = device.create_compute_stream();
  Arena arena(device, "product peak");
  std::vector<std::byte> host(static_cast<size_t>(size * size * size_of(dtype)));
  Tensor operands[2];
  for (uint64_t which = 0; which < 2; ++which) {
    for (size_t i = 0; i < static_cast<size_t>(size * size); ++i) {
      const uint64_t hash = (i + which * 0xD1B54A32D192ED03ull) * 0x9E3779B97F4A7C15ull;
      const float value = static_cast<float>(hash >> 40) * 0x1p-23f - 1.0f;
      const bf16 rounded(value);
      if (dtype == DType::bf16) std::memcpy(&host[2 * i], &rounded, 2);
      else std::memcpy(&host[4 * i], &value, 4);
    }
    operands[which] = arena.allocate(dtype, {size, size});
    device.copy_to_device(host.data(), operands[which], *stream);
    stream->synchronize();
  }
  const Tensor c = arena.allocate(dtype, {size, size});
  double best = 0;
  for (int round = 0; round <= kRounds; ++round) {  // the first is a warm-up
    const int64_t start = now_ns();
    for (int i = 0; i < kProducts; ++i)
      ops.run(op::Matmul{.a = operands[0], .b = operands[1], .c = c, .transpose_b = true}, *stream);
    stream->synchronize();
    const double flops = kProducts * 2.0 * static_cast<double>(size) * static_cast<double>(size * size);
    if (round > 0) best = std::max(best, flops / static_cast<double>(now_ns() - start) * 1e-3);
  }
  return best;
}

struct OpTime {
  double seconds = 0;  // per step
  double calls = 0;
};

struct MeasuredSteps {
  std::vector<double> seconds;          // of each step, sorted
  std::vector<double> seconds_unspied;  // of further steps without spans, sorted
  double host_seconds = 0;              // to queue a step while none is in flight: the minimum of several
  double last_loss = 0;
  StepStats stats;  // over all steps in `seconds`
  std::map<std::string, OpTime> ops;

  static double median(const std::vector<double>& sorted) { return sorted[sorted.size() / 2]; }
};

// Runs n steps after one that is not counted. On a GPU, a step's time starts at the end of the previous step.
inline std::vector<StepResult> run_steps(Trainer& trainer, int n) {
  const bool ahead = trainer.device().kind() == DeviceKind::cuda;
  std::vector<StepResult> results;
  for (int i = 0; i <= n; ++i) {
    if (const auto earlier = trainer.queue_step()) results.push_back(*earlier);
    if (!ahead || i == n) results.push_back(trainer.finish_step());
  }
  results.erase(results.begin());
  return results;
}

inline std::vector<double> sorted_seconds(std::span<const StepResult> steps) {
  std::vector<double> seconds;
  for (const StepResult& step : steps) seconds.push_back(static_cast<double>(step.end_ns - step.start_ns) * 1e-9);
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

// REQUIRES: the trainer is warm, and no step is in flight.
inline MeasuredSteps measure_steps(Trainer& trainer, int steps) {
  MeasuredSteps found;
  std::vector<std::vector<Span>> spans(trainer.trace().rows().size());
  const auto take = [&] {
    size_t i = 0;
    for (TraceRow& row : trainer.trace().rows()) row.take(spans[i++]);
  };
  take();  // drops the spans of earlier steps: only the steps below are measured
  trainer.trace().set_room(std::numeric_limits<int64_t>::max());  // for all spans
  const std::vector<StepResult> results = run_steps(trainer, steps);
  take();
  const int64_t start = results.front().start_ns, end = results.back().end_ns;
  found.seconds = sorted_seconds(results);
  found.last_loss = results.back().loss;
  found.stats = StepMeter().measure(spans, start, end);
  for (const std::vector<Span>& row : spans)
    for (const Span& span : row) {
      const int64_t inside = std::min(span.end_ns, end) - std::max(span.start_ns, start);
      if (span.info.category == Category::phase || span.start_ns < start || inside < 0) continue;
      OpTime& op = found.ops[span.info.name];
      op.seconds += static_cast<double>(inside) * 1e-9 / steps;
      op.calls += 1.0 / steps;
    }

  for (int i = 0; i < 3; ++i) {
    const int64_t queueing = now_ns();
    trainer.queue_step();
    const double seconds = static_cast<double>(now_ns() - queueing) * 1e-9;
    found.host_seconds = i == 0 ? seconds : std::min(found.host_seconds, seconds);
    trainer.finish_step();
  }

  Stream& compute = *trainer.rank().compute;
  TraceRow* const row = compute.trace_row();
  compute.set_trace_row(nullptr);
  found.seconds_unspied = sorted_seconds(run_steps(trainer, steps));
  compute.set_trace_row(row);
  return found;
}

}  // namespace trivet
