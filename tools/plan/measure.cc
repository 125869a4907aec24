#include "tools/plan/measure.h"

#include <map>

#include "base/statistics.h"
#include "engine/config/load.h"
#include "engine/data/synthetic_batches.h"
#include "engine/train/trainer.h"
#include "parallel/comm/world.h"

namespace trivet {
namespace {

constexpr std::string_view kRun = R"(
model: {num_layers: 2, hidden_size: 256, num_attention_heads: 4, seq_length: 256, vocab_size: 1024}
batch: {micro_batch_size: 1}
data: {path: none}
train: {train_iters: 1000}
device: {kind: cpu, threads_per_rank: 1, peak_tflops: 1}
)";

// [step]: rank 0's spans on the compute stream, in the order in which they ended.
using Steps = std::vector<std::vector<Span>>;

Steps spans_of_run(const Config& config, const Layout& layout, int steps) {
  Steps all;
  run_thread_ranks(layout.mesh.world(), [&](Communicator& world) {
    SyntheticBatches batches(config.batch.micro_batch_size * config.model.seq_length, *config.model.vocab_size);
    Trainer trainer(config, layout, world, &batches);
    std::vector<Span> spans;
    for (int step = 0; step <= steps; ++step) {
      trainer.step();
      for (TraceRow& row : trainer.trace().rows()) {
        row.take(spans);
        if (step > 0 && world.rank() == 0 && &row == &trainer.trace().rows().front()) all.push_back(spans);
      }
    }
  });
  return all;
}

double median_seconds(const Steps& steps, size_t span, int64_t Span::*since) {
  std::vector<double> values;
  for (const std::vector<Span>& spans : steps) {
    check(spans.size() == steps.front().size(), "the steps of a run differ in what they do");
    values.push_back(1e-9 * static_cast<double>(spans[span].end_ns - spans[span].*since));
  }
  return median(values);
}

// One step's work items, by name.
std::map<std::string_view, std::vector<TapeWork>> works_of_step(const Config& config, const Layout& layout) {
  TapeGroups groups;
  const Tape tape = record_tape(config, layout, 0, groups, {.steps = 2, .one_ahead = false, .cpu = true});
  std::map<std::string_view, std::vector<TapeWork>> works;
  bool second = false;
  for (const TapeRecord& record : tape.records) {
    if (record.kind == TapeRecord::work && record.stream == 0 && second)
      works[tape.works[record.what].name].push_back(tape.works[record.what]);
    second = second || record.kind == TapeRecord::mark;
  }
  return works;
}

}  // namespace

MeasuredOps measure_run(const std::vector<std::string>& sets, int ranks, int steps) {
  LoadedConfig loaded = parse_config(std::string(kRun), "measurement", sets);
  const Layout layout = resolve(loaded, {.world_size = ranks, .has_dataset = true});
  const Steps all = spans_of_run(loaded.config, layout, steps);
  const auto works = works_of_step(loaded.config, layout);
  MeasuredOps run;
  std::map<std::string_view, size_t> seen;
  for (size_t i = 0; i < all.front().size(); ++i) {
    const SpanInfo& info = all.front()[i].info;
    if (info.category == Category::compute || info.category == Category::optimizer) {
      const size_t n = seen[info.name]++;
      const auto of_tape = works.find(info.name);
      check(of_tape != works.end() && n < of_tape->second.size(),
            fmt::format("a step has more of {} than its tape", info.name));
      run.works.push_back({of_tape->second[n], median_seconds(all, i, &Span::start_ns)});
    } else if (is_comm(info.category)) {
      run.calls.push_back({info.bytes, median_seconds(all, i, &Span::wire_start_ns)});
    }
  }
  return run;
}

}  // namespace trivet
