// The cost of tracing: steps of the demo's model (configs/tiny.yaml) on one rank, alternately with and without spans,
// and the cost of one span. With: the spans are recorded, collected, analysed and written to a Perfetto file. Without:
// the compute stream has no trace row.
//   trace_bench [--pairs N]
// Also measures how late a call over an emulated link completes: from the link's deadline to the end of the call.
#include <algorithm>
#include <fmt/format.h>
#include <vector>

#include "engine/data/gpt_dataset.h"
#include "engine/data/indexed_dataset.h"
#include "engine/metrics/perfetto.h"
#include "engine/metrics/step_stats.h"
#include "engine/train/trainer.h"
#include "parallel/comm/link.h"
#include "parallel/comm/world.h"
#include "tests/bench/random_tokens.h"
#include "tests/bench/support.h"
#include "tests/support/temp_dir.h"

namespace trivet {
namespace {

double span_ns() {
  TraceRow row("row");
  std::vector<Span> spans;
  constexpr int kSpans = 10'000, kRounds = 50;
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t begin = now_ns();
    for (int i = 0; i < kSpans; ++i) ScopedSpan span(&row, {"x"});
    best = std::min(best, static_cast<double>(now_ns() - begin) / kSpans);
    row.take(spans);
  }
  return best;
}

void tracing(const TempDir& folder, int64_t pairs) {
  write_random_tokens(folder / "tokens", 4096);

  LoadedConfig loaded;
  loaded.path = "bench";
  loaded.config.model = {.num_layers = 4,
                         .hidden_size = 256,
                         .ffn_hidden_size = 1024,
                         .num_attention_heads = 8,
                         .seq_length = 128,
                         .vocab_size = 4096};
  loaded.config.batch = {.micro_batch_size = 4, .global_batch_size = 16};
  loaded.config.precision.dtype = DType::bf16;
  loaded.config.device.threads_per_rank = 1;
  loaded.config.data.path = folder / "tokens";
  loaded.config.train.train_iters = 100'000;
  const Layout layout = resolve(loaded, {});
  const GptDataset data(std::make_shared<const IndexedDataset>(folder / "tokens"), {0, 1},
                        {.name = "train", .seq_length = 128, .vocab_size = 4096, .seed = 1});
  run_thread_ranks(1, [&](Communicator& world) {
    BatchLoader batches(data, batch_plan_of(loaded.config, layout, world.rank()), loaded.config.data.prefetch);
    Trainer trainer(loaded.config, layout, world, &batches);
    TraceRow& row = trainer.trace().rows().front();
    const std::vector<std::string> names = {row.name()};
    PerfettoWriter perfetto(folder / "trace.json", 0, {.process = "rank 0", .rows = names}, now_ns(), nullptr);
    StepMeter meter;
    std::vector<std::vector<Span>> spans(1);
    std::vector<double> with, without, ratios;
    for (int i = -2; i < 2 * pairs; ++i) {
      const bool traced = i % 2 == 0;
      trainer.rank().compute->set_trace_row(traced ? &row : nullptr);
      const int64_t begin = now_ns();
      const StepResult result = trainer.step();
      if (traced) {
        row.take(spans[0]);
        perfetto.step(result.step, spans);
        meter.measure(spans, result.start_ns, result.end_ns);
      }
      if (i >= 0) (traced ? with : without).push_back(static_cast<double>(now_ns() - begin) * 1e-6);
    }
    for (size_t i = 0; i < without.size(); ++i) ratios.push_back(with[i] / without[i]);
    const double per_span = span_ns(), step = median(without), count = static_cast<double>(spans[0].size());
    fmt::print("step without tracing {:.3f} ms, with {:.3f} ms, median ratio of {} pairs {:.4f}\n", step, median(with),
               pairs, median(ratios));
    fmt::print("{} spans a step of {:.0f} ns: {:.3f}% of the step\n", count, per_span, count * per_span * 1e-4 / step);
  });
}

void lateness() {
  for (const double latency_us : {20.0, 100.0, 1000.0}) {
    const Link link{.latency_us = latency_us};
    std::vector<double> late;
    run_thread_ranks(2, [&](Communicator& world) {
      const auto linked = with_links(world, {{"data", link}});
      const auto group = linked->twin("group", comm_of("data"));
      const auto device = create_cpu_device();
      const auto stream = device->create_compute_stream();
      TraceRow row("row");
      stream->set_trace_row(&row);
      float x = 0;
      for (int i = 0; i < 500; ++i) group->broadcast({&x, DType::f32, {1}}, 0, *stream);
      std::vector<Span> spans;
      row.take(spans);
      if (world.rank() != 0) return;
      for (const Span& span : spans)
        late.push_back(static_cast<double>(span.end_ns - span.wire_start_ns) * 1e-3 - latency_us);
    });
    std::sort(late.begin(), late.end());
    fmt::print("a call over a link of {:.0f} us ends late by {:.1f} us (median), {:.1f} us (90 %)\n", latency_us,
               late[late.size() / 2], late[late.size() * 9 / 10]);
  }
}

}  // namespace
}  // namespace trivet

int main(int argc, char** argv) {
  int64_t pairs = 40;
  trivet::read_options(argc, argv, {{"--pairs", &pairs}});
  const trivet::TempDir folder;
  trivet::tracing(folder, pairs);
  trivet::lateness();
  return 0;
}
