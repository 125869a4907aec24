#include "tools/explain/explain.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ranges>
#include <set>

#include "engine/config/explain.h"
#include "engine/metrics/accounting.h"
#include "engine/train/rank_state.h"
#include "parallel/pipeline/simulate.h"
#include "tools/draw/render.h"
#include "tools/explain/picture.h"
#include "tools/plan/planned_run.h"

namespace trivet {

std::vector<Queued> RecordedStep::of_unit(int unit, int microbatch) const {
  std::vector<Queued> of;
  for (const Queued& q : queued)
    if (q.label.microbatch == microbatch && q.label.first_unit == unit && q.label.last_unit == unit) of.push_back(q);
  return of;
}

RecordedStep record_step(const Config& run, const Layout& layout, int rank) {
  Config config = run;
  config.device.cuda_graph_impl = CudaGraphs::none;
  RecordedStep step;
  const Tape& tape = step.tape;
  step.tape = record_tape(config, layout, rank, step.groups,
                          {.steps = 2, .one_ahead = false, .cpu = config.device.kind != DeviceKind::cuda});
  std::vector<std::string_view> phases;  // phases open on the compute stream
  int marks = 0;
  for (const TapeRecord& record : tape.records) {
    if (record.kind == TapeRecord::mark) ++marks;
    if (record.stream == 0 && record.kind == TapeRecord::begin_phase) phases.push_back(tape.works[record.what].name);
    if (record.stream == 0 && record.kind == TapeRecord::end_phase) phases.pop_back();
    if (marks != 1 || (record.kind != TapeRecord::call && record.kind != TapeRecord::work)) continue;
    const TapeCall* const call = record.kind == TapeRecord::call ? &tape.calls[record.what] : nullptr;
    step.queued.push_back({.work = call ? nullptr : &tape.works[record.what],
                           .call = call,
                           .group = call ? &step.groups[tape.groups[static_cast<size_t>(call->group)]] : nullptr,
                           .label = tape.labels[record.label],
                           .pass = phases.empty() ? "" : phases.back(),
                           .stream = tape.streams[record.stream]});
  }
  return step;
}

namespace {

using Cells = std::vector<std::string>;

// Formats the text as a Markdown code block.
std::string code(std::string_view text) {
  std::string out;
  for (const auto part : std::views::split(text, '\n'))
    if (const std::string_view line(part.begin(), part.end()); !line.empty()) out += fmt::format("    {}\n", line);
  return out + '\n';
}

// A call's entry in the named column.
std::string cell(const Queued& q, std::string_view column) {
  const TapeGroups::Group& group = *q.group;
  if (column == "class") return std::string(kCommClasses.at(class_of(group.category)));
  if (column == "call") return q.call->name;
  if (column == "pass") return std::string(q.pass);
  if (column == "group") return q.stream == group.name ? group.name : fmt::format("{}: {}", q.stream, group.name);
  std::vector<int> ranks = group.world_ranks;
  std::ranges::sort(ranks);
  return ranks.size() <= 8 ? fmt::format("{}", fmt::join(ranks, ", "))
                           : fmt::format("{}, {}, … {}: {} ranks", ranks[0], ranks[1], ranks.back(), ranks.size());
}

// Sums over calls that are equal in these columns, in order of first appearance.
std::string sums_of(const std::vector<Queued>& queued, const Cells& columns) {
  struct Sum {
    Cells cells;
    int64_t calls = 0, bytes = 0, wire = 0;
    std::set<int> buckets = {};
  };
  std::vector<Sum> sums;
  for (const Queued& q : queued) {
    if (!q.call) continue;
    Cells cells;
    for (const std::string& column : columns) cells.push_back(cell(q, column));
    auto sum = std::ranges::find(sums, cells, &Sum::cells);
    if (sum == sums.end()) sum = sums.insert(sum, {.cells = cells});
    ++sum->calls, sum->bytes += q.call->bytes, sum->wire += q.wire_bytes();
    if (q.label.bucket >= 0) sum->buckets.insert(q.label.bucket);
  }
  TextBlock block;
  for (const std::string& column : columns) block.column(column, 'l');
  for (const char* name : {"calls", "bytes", "on the wire", "buckets"}) block.column(name, 'r');
  for (const Sum& sum : sums) {
    Cells& row = block.rows.emplace_back(sum.cells);
    for (const int64_t n : {sum.calls, sum.bytes, sum.wire, std::ssize(sum.buckets)}) row.push_back(grouped(n));
  }
  return code(render({block}));
}

struct Page {
  Page(const LoadedConfig& loaded, const Layout& of, int rank)
      : config(loaded.config),
        layout(of),
        state(config, of, position_of(rank, of.mesh), *device),
        step(record_step(config, of, rank)),
        summary(describe_run(config, of, {state.memory()})),
        unit(static_cast<int>(state.params.units().size() / 2)) {
    while (unit >= 0 && !is_layer(unit)) --unit;
    title =
        fmt::format("{} on {}, as {} sees it", loaded.path, counted(of.mesh.world(), "rank"), rank_name(rank, of.mesh));
    say("# {}", title);
    say("Recorded from the engine on a device without memory: operations, order, groups and bytes are those of a run. "
        "`trivet plan` predicts how long they take, and `trivet trace` shows it.");
    add_ranks();
    if (unit >= 0) add_layer();
    add_step();
  }

  const std::string& name_of_unit(int number) const { return state.params.units()[static_cast<size_t>(number)].name; }
  bool is_layer(int number) const { return name_of_unit(number).starts_with("layer"); }
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    text += wrapped(fmt::format(format, std::forward<Args>(args)...), kColumns) + "\n\n";
  }
  void add_summary(std::string_view of) { text += code(render({*std::ranges::find(summary, of, &TextBlock::title)})); }

  void add_ranks() {
    say("## 1. Ranks");
    add_summary("layout");
    say("Its groups, and their calls in a step:");
    text += sums_of(step.queued, {"class", "ranks"});
    std::string held;
    for (const GptStage& stage : state.stages)
      held +=
          fmt::format("{}{}{} from layer {} on{}", held.empty() ? "" : "; ",
                      stage.range().has_embedding ? "the embedding, " : "", counted(stage.range().num_layers, "layer"),
                      stage.range().first_layer, stage.range().has_head ? ", the output layer" : "");
    say("It has {}. Its parts of the matrices at the ends of the model and of one layer:", held);
    text += code(render({weights()}));
    const FlatBuffer& flat = state.flat;
    const auto numbers = [](const Tensor& stored) { return stored ? stored.numel() : 0; };
    say("Of {} numbers in {}, padding included, it stores {} weights and {} gradients, and its optimizer updates {} "
        "({}).",
        grouped(flat.numel), counted(std::ssize(flat.buckets), "bucket"),
        grouped(numbers(flat.stored_weights) + numbers(flat.stored_codes)), grouped(numbers(flat.stored_grads)),
        grouped(flat.owned_numel), word_of(config.parallel.data_parallel_sharding_strategy));
    say("Read: docs/course/10-three-dimensions.md, docs/course/05-zero.md, parallel/mesh_shape.cc:position_of, "
        "parallel/param.h:placement_of, parallel/data/flat_buffer.h:FlatBuffer");
  }

  TextBlock weights() const {
    TextBlock block = {"", {{"weight", "whole", "its part", "numbers", "updates"}}, "lllrr"};
    for (const Param& param : state.params.all()) {
      const int dim = param.partition_dim;
      if (param.shape.rank < 2 || (param.unit != unit && is_layer(param.unit))) continue;
      int64_t updates = 0;
      for (const OwnedShard& shard : state.flat.owned) updates += shard.param == &param ? shard.weight.numel() : 0;
      block.rows.push_back(
          {param.spec.name, to_string(param.spec.global_shape), "all", grouped(param.shape.numel()), grouped(updates)});
      if (const int64_t first = param.partition_offset; dim >= 0)
        block.rows.back()[2] = fmt::format("{} {} to {}", dim + 1 == param.shape.rank ? "columns" : "rows", first,
                                           first + param.shape[dim] - 1);
    }
    return block;
  }

  void add_layer() {
    say("## 2. One layer");
    say("The first micro-batch in {}, pass by pass. Sizes are m x n x k of a GEMM, and heads x queries x keys x width "
        "of attention. Bytes are those read and written; of a call, those of its tensor. Steps are those in "
        "engine/model/block.h. The weight gradients that a schedule leaves to W are not in this list.",
        name_of_unit(unit));
    TextBlock block = {"", {{"", "", "size or group", "MFLOP", "bytes", "stream", "of"}}, "lllrr"};
    layer = layer_rows();
    for (const LayerRow& row : layer) {
      const Queued& q = row.queued;
      const int64_t flops = q.work ? q.work->flops : 0;
      block.rows.push_back({std::string(q.pass), row.name, row.size,
                            flops > 0 ? fmt::format("{:.3f}", static_cast<double>(flops) * 1e-6) : "",
                            grouped(q.call ? q.call->bytes : q.work->bytes), std::string(q.stream), row.linear});
    }
    text += code(render({block}));
    say("Its calls:");
    text += sums_of(step.of_unit(unit, 0), {"pass", "call", "group"});
    say("Read: docs/course/06-tensor.md, docs/course/07-sequence.md, docs/course/09-recompute.md, "
        "engine/model/block.cc:forward, parallel/tensor/linear.h:ColumnParallelLinear");
  }

  std::vector<LayerRow> layer_rows() const {
    std::vector<LayerRow> rows;
    int count = 1;
    for (const Queued& q : step.of_unit(unit, 0)) {
      LayerRow row = row_of(q);
      if (!rows.empty() && row.linear.empty() && alike(rows.back().queued, q) && rows.back().size == row.size) {
        rows.back().name = fmt::format("{} x {}", row.name, ++count);
        continue;
      }
      rows.push_back(std::move(row)), count = 1;
    }
    return rows;
  }

  static bool alike(const Queued& a, const Queued& b) {
    if (a.pass != b.pass || a.stream != b.stream || !a.call != !b.call) return false;
    if (a.call) return a.call->name == b.call->name && a.call->bytes == b.call->bytes;
    return a.work->name == b.work->name && a.work->bytes == b.work->bytes && a.work->flops == b.work->flops;
  }

  LayerRow row_of(const Queued& q) const {
    if (q.call) return {q, q.call->name, q.group->name, ""};
    const TapeWork& w = *q.work;
    LayerRow row{q, w.name, "", ""};
    if (w.kind == TapeWork::attention)
      row.size = fmt::format("{} x {} x {} x {}", w.batch, w.m, w.n, w.k), row.linear = "step 3";
    if (w.kind == TapeWork::gemm) row.size = fmt::format("{} x {} x {}", w.m, w.n, w.k), row.linear = linear_of(q);
    return row;
  }

  // The linear layer whose weight [out, in] matches these sizes; "" if none or several do.
  std::string linear_of(const Queued& q) const {
    constexpr std::pair<const char*, int> kSteps[] = {{"qkv", 2}, {"proj", 4}, {"fc1", 5}, {"fc2", 6}};
    const auto [m, n, k] = std::tuple(q.work->m, q.work->n, q.work->k);
    std::set<std::string> fits;
    for (const Param& param : state.params.all())
      for (const auto& [name, number] : kSteps) {
        if (param.unit != unit || !param.spec.name.ends_with(fmt::format("{}.weight", name))) continue;
        const int64_t in = param.shape[-1], out = param.shape.numel() / in;
        const bool fits_this = q.pass == "B" || q.pass == "I" ? n == in && (k == out || m == out) : n == out && k == in;
        if (fits_this) fits.insert(fmt::format("{}, step {}", name, number));
      }
    return fits.size() == 1 ? *fits.begin() : "";
  }

  void add_step() {
    say("## 3. A step");
    add_summary("work");
    const TokenFlops token = flops_per_token(model_spec_of(config.model), config.train.flops_convention);
    int64_t flops = 0, recomputed = 0;
    for (const Queued& q : step.queued)
      if (q.work) flops += q.work->flops, recomputed += q.work->recomputed ? q.work->flops : 0;
    say("Of a token's model FLOPs, {:.6g} are for weights (6 each), {:.6g} for attention and {:.6g} for the output "
        "layer. This rank computes {:.6g} in a step, {:.6g} of them to recompute activations. (Attention's backward "
        "pass computes its scores again, too.)",
        token.layers, token.attention, token.logits, static_cast<double>(flops), static_cast<double>(recomputed));
    say("Read: docs/course/02-roofline.md, engine/metrics/accounting.cc:flops_per_token");
    say("Its communication:");
    text += sums_of(step.queued, {"class", "call", "pass", "group"});
    say("The pass is the one in which the host queued the call. Without `compute:` a call has a stream of its own, for "
        "which compute waits when it needs the result. A message is on the wire of its receiver.");
    add_summary("memory per rank");
    say("Read: docs/course/03-collectives.md, docs/course/04-data-parallelism.md, docs/course/09-recompute.md, "
        "parallel/comm/call.h:wire_cost, engine/train/rank_state.h:RankState");
    const Schedule& schedule = layout.schedule;
    const Timeline timeline = simulate(schedule, {});
    say("## 4. Schedule");
    say("{} of {}, where F, I and W take equally long, and B as long as I and W: {}. Slots of activations, by pipeline "
        "rank: {}.",
        schedule.kind, counted(schedule.m, "micro-batch"), bubble_text(timeline),
        fmt::join(peaks_of(programs_of(timeline), schedule.v) | std::views::transform(&Peak::slots), " "));
    if (schedule.m <= kMostDrawn) text += code(render_text(timeline, {.columns = kColumns}));
    say("Read: docs/course/08-pipelines.md, docs/schedules.md, parallel/pipeline/executor.cc:run_ops");
  }

  // Adds the times that a trace contains: those of the passes, of the layer, and of each communicator's calls.
  void add_measured(const StepTimeline& timeline) {
    const RankTimeline& measured = timeline.ranks.at(0);
    TextBlock block = {"", {{"", "spans", "ms", "ms each"}}, "lrrr"};
    const auto add = [&](const std::string& name, const std::vector<TraceSpan>& spans, std::string TraceSpan::*of) {
      int64_t count = 0, ns = 0;
      for (const TraceSpan& span : spans)
        if (span.*of == name) ++count, ns += span.time.length();
      const double ms = static_cast<double>(ns) * 1e-6;
      if (count > 0)
        block.rows.push_back(
            {name, grouped(count), fmt::format("{:.3f}", ms), fmt::format("{:.3f}", ms / static_cast<double>(count))});
    };
    for (const char* pass : {"F", "B", "I", "W"}) add(pass, measured.ops, &TraceSpan::name);
    if (unit >= 0) add(name_of_unit(unit), measured.layers, &TraceSpan::layer);
    add("optimizer", measured.layers, &TraceSpan::layer);
    say("## 5. Measured");
    say("Step {} took {:.3f} ms on this rank: its passes, the layer of part 2, and its calls.", timeline.step,
        static_cast<double>(timeline.window.length()) * 1e-6);
    text += code(render({block})) + (measured.lanes.empty() ? "" : code(render({table_of(timeline)})));
    say("Read: docs/course/11-overlap-study.md, docs/overlap.md, tools/draw/step_timeline.h:StepTimeline");
  }

  static constexpr int kColumns = 105, kMostDrawn = 16;  // kMostDrawn: micro-batches
  const Config& config;
  const Layout& layout;
  const std::unique_ptr<Device> device = create_planning_device();
  const RankState state;
  const RecordedStep step;
  const std::vector<TextBlock> summary;
  int unit;  // a layer in the middle of the rank's units; -1: the rank holds no layer
  std::vector<LayerRow> layer;
  std::string title, text;
};

}  // namespace

Explained explain(const LoadedConfig& loaded, const Layout& layout, int rank, const StepTimeline* measured) {
  if (const int world = layout.mesh.world(); rank < 0 || rank >= world)
    throw ConfigError(fmt::format("--rank: found {}, expected a rank from 0 to {}", rank, world - 1));
  check_is_planned(loaded.config);
  Page page(loaded, layout, rank);
  if (measured) page.add_measured(*measured);
  std::vector<std::string> units;
  for (const auto& unit : page.state.params.units()) units.push_back(unit.name);
  return {page.text, render_explained_svg(page.title, page.layer, page.step, units)};
}

}  // namespace trivet
