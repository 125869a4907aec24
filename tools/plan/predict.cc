#include "tools/plan/predict.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <unistd.h>

#include "base/files.h"
#include "base/host.h"
#include "base/json.h"
#include "base/parallel_for.h"
#include "engine/metrics/perfetto.h"
#include "engine/train/rank_state.h"
#include "tools/draw/measured.h"
#include "tools/draw/render.h"
#include "tools/plan/costs.h"
#include "tools/plan/device_memory.h"
#include "tools/plan/framework.h"
#include "tools/plan/thread_ranks.h"

namespace trivet {
namespace {

// The names of a tape's streams in a trace.
std::vector<std::string> names_of_rows(const Tape& tape) {
  std::vector<std::string> rows;
  for (size_t s = 0; s < tape.streams.size(); ++s)
    rows.push_back(tape.streams[s].empty() ? fmt::format("stream {}", s) : tape.streams[s]);
  return rows;
}

// A rehearsal and its replay.
struct Performance {
  const Rehearsal& rehearsal;
  const Replayed& replayed;

  std::vector<std::vector<Span>> rows_of(size_t player) const {
    return trivet::rows_of(replayed.spans[player], rehearsal.players[player], rehearsal.groups);
  }
};

// Writes a trace of the ranks' last step.
void write_trace(const std::string& path, const Performance& of, const Layout& layout, int64_t origin_ns,
                 const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  const std::string part = fmt::format("{}.{}.part", path, getpid());
  for (const int rank : ranks) {
    const auto player = static_cast<size_t>(of.rehearsal.player_of[static_cast<size_t>(rank)]);
    parts.push_back(fmt::format("{}{}", part, rank));
    PerfettoWriter writer(
        parts.back(), rank,
        {.process = rank_name(rank, layout.mesh), .rows = names_of_rows(*of.rehearsal.players[player].tape)}, origin_ns,
        [](const std::string& text) { throw IoError(text); });
    writer.step(1, of.rows_of(player));
    writer.close();
  }
  join_traces(parts, path);
  for (const std::string& each : parts) std::filesystem::remove(each);
}

std::vector<int> traced_ranks(const std::vector<int>& asked, const Rehearsal& rehearsal) {
  const auto count = static_cast<int>(rehearsal.player_of.size());
  std::set<int> ranks(asked.begin(), asked.end());
  for (const int rank : ranks)
    if (rank < 0 || rank >= count)
      throw ConfigError(fmt::format("--trace-ranks: found {}, expected ranks from 0 to {}", rank, count - 1));
  if (asked.empty())
    for (const Player& player : rehearsal.players) ranks.insert(player.rank);
  return {ranks.begin(), ranks.end()};
}

// Draws the pipeline ranks' passes from a trace.
std::string picture_of(const std::string& path, const Performance& of, const Layout& layout, int64_t origin_ns,
                       const System& system) {
  std::vector<int> ranks;
  for (int stage = 0; stage < layout.schedule.p; ++stage) ranks.push_back(rank_of({{Axis::pp, stage}}, layout.mesh));
  const std::string trace = fmt::format("{}.{}.trace", path, getpid());
  write_trace(trace, of, layout, origin_ns, ranks);
  Timeline timeline = read_measured_steps(trace, layout.schedule).front().timeline;
  std::filesystem::remove(trace);
  timeline.title = fmt::format("{} planned on {}: p = {}, m = {}, v = {}", layout.schedule.kind, system.name,
                               layout.schedule.p, layout.schedule.m, layout.schedule.v);
  return render_svg(std::span(&timeline, 1));
}

// The time when the last rank finishes the step.
int64_t end_of_step(const Replayed& replayed, int step) {
  int64_t last = 0;
  for (const std::vector<int64_t>& ends : replayed.step_ends) last = std::max(last, ends[static_cast<size_t>(step)]);
  return last;
}

// The mean over the steps after the first, which starts with idle ranks.
double seconds_of_step(const Replayed& replayed, int steps) {
  return static_cast<double>(end_of_step(replayed, steps - 1) - end_of_step(replayed, 0)) * 1e-9 / (steps - 1);
}

// The tapes of all ranks, one player per rank. On CPUs a step is finished once the host has queued it.
Rehearsal rehearse_each(const Config& config, const Layout& layout, const System& system) {
  if (system.kind() == SystemKind::gpu) return rehearse(config, layout);
  Rehearsal rehearsal = rehearse(config, layout, {.one_ahead = false, .cpu = true});
  play_on_threads(rehearsal, links_of(config.comm));
  return rehearsal;
}

// A rank's fastest link per call class: NVLink with multicast, or the network cards of its group on one node.
KnownLinks links_of(const Layout& layout, const System& system) {
  KnownLinks links;
  if (system.kind() == SystemKind::cpu) return links;
  for (const AxisInfo& row : kAxes) {
    std::map<int, int> by_node;
    const AxisSet axes = row.axis == Axis::dp ? kGradientAxes : AxisSet{row.axis};
    for (const int rank : group_members({}, layout.mesh, axes)) ++by_node[rank / system.gpus_per_node];
    const double link = std::max(system.nvlink_gb_per_s, 2 * system.nvls_gb_per_s),
                 cards = system.network_gb_per_s * by_node.begin()->second;
    links[class_of(row.category)] = Link{.gbps = 8 * (by_node.size() > 1 ? std::min(link, cards) : link)};
  }
  return links;
}

// The peak for linear layers; CPUs multiply FP8 as bf16.
MfuPeak peak_of(const Config& config, const Layout& layout, const System& system) {
  const DType dtype = config.precision.dtype;
  const double peak = dtype == DType::bf16 ? system.bf16_tflops : system.fp32_tflops;
  if (system.kind() == SystemKind::cpu)
    return {name_of(dtype), peak * threads_of_rank(config, system, layout.mesh.world())};
  return config.precision.fp8 == Fp8::none ? MfuPeak{name_of(dtype), peak} : MfuPeak{"fp8", system.fp8_tflops};
}

}  // namespace

SystemCosts::SystemCosts(const System& system, const PlanConfig& plan)
    : system_(system), plan_(plan), launch_ns_(ns_of(launch_seconds(system, plan))) {}

int64_t SystemCosts::work_ns(const TapeWork& work, bool) const { return ns_of(work_seconds(system_, plan_, work)); }

CallCost SystemCosts::call_cost(const TapeCall& call, const TapeGroups::Group& group) const {
  std::map<int, int> by_node;
  for (const int rank : group.world_ranks) ++by_node[rank / system_.gpus_per_node];
  const bool across = by_node.size() > 1;
  const Port port = across ? Port::network : Port::link;
  if (call.kind == CommCall::transfer) {
    // A larger group is a ring, in which every transfer runs at the speed of the hop between nodes.
    const double share = system_.network_gb_per_s * system_.network_share / system_.nvlink_gb_per_s;
    return {ns_of(transfer_seconds(system_, call.bytes, across)), port, across ? std::min(1.0, share) : 1};
  }
  const auto most = std::ranges::max_element(by_node, {}, [](const auto& node) { return node.second; })->second;
  const GroupPlace place{.ranks = static_cast<int>(group.world_ranks.size()),
                         .ranks_per_node = most,
                         .groups_per_node = across ? std::max(1, system_.gpus_per_node / most) : 1};
  return {ns_of(collective_seconds(system_, call.kind, call.bytes, place)), port, ring_share(system_, place)};
}

int64_t SystemCosts::host_ns(const TapeRecord& record) const {
  const bool launches =
      record.kind == TapeRecord::work || record.kind == TapeRecord::call || record.kind == TapeRecord::graph;
  return launches ? launch_ns_ : 0;
}

void check_is_priced(const Config& config, const System& system) {
  if (config.precision.fp8 != Fp8::none && system.kind() == SystemKind::gpu && system.fp8_tflops == 0)
    throw ConfigError(
        fmt::format("precision.fp8: found {}, but the spec {} has no fp8_tflops, the peak of GEMMs in FP8; expected "
                    "none, or --system-set fp8_tflops=NUMBER of a GPU with FP8 GEMMs",
                    word_of(config.precision.fp8), system.name));
  const auto unpriced = [](const char* key, const auto& found, const auto& expected) {
    if (found != expected)
      throw ConfigError(
          fmt::format("{}: found {}, which slows down CPUs, the only devices that have it, by an amount "
                      "that plans do not predict; expected {}",
                      key, found, expected));
  };
  unpriced("precision.fp8_accumulator_bits", config.precision.fp8_accumulator_bits, 24);
  unpriced("precision.fp8_report", config.precision.fp8_report, false);
}

Rehearsal rehearse_on(const Config& config, const Layout& layout, const System& system) {
  check_is_priced(config, system);
  Rehearsal rehearsal = rehearse_each(config, layout, system);
  if (system.kind() == SystemKind::gpu) merge_ranks(rehearsal, system.gpus_per_node);
  return rehearsal;
}

std::unique_ptr<ReplayCosts> costs_of(const Config& config, const Layout& layout, const System& system) {
  if (system.kind() == SystemKind::gpu) return std::make_unique<SystemCosts>(system, plan_of(config));
  return std::make_unique<ThreadCosts>(system, threads_of_rank(config, system, layout.mesh.world()),
                                       links_of(config.comm), config.comm.shared_port);
}

double predict_step_seconds(const Rehearsal& rehearsal, const ReplayCosts& costs) {
  return seconds_of_step(replay(rehearsal.players, rehearsal.groups, costs), rehearsal.tapes.front().steps);
}

Prediction predict(const Config& config, const Layout& layout, const System& system, const PredictOptions& asked) {
  const Rehearsal rehearsal = rehearse_on(config, layout, system);
  const std::vector<Player>& players = rehearsal.players;
  const std::vector<int> trace_ranks = traced_ranks(asked.trace_ranks, rehearsal);
  const int steps = rehearsal.tapes.front().steps;
  const Replayed replayed =
      replay(players, rehearsal.groups, *costs_of(config, layout, system), {.spans = true, .first_step = steps - 1});
  const Performance performance{rehearsal, replayed};

  Prediction prediction{.peak = peak_of(config, layout, system), .links = links_of(layout, system)};
  prediction.ranks.resize(players.size());
  parallel_for(players.size(), static_cast<size_t>(usable_cores()), [&](size_t i) {
    const std::vector<int64_t>& ends = replayed.step_ends[i];
    std::vector<std::vector<Span>> rows = performance.rows_of(i);
    for (std::vector<Span>& row : rows)
      for (Span& span : row) {
        if (span.end_ns > ends.back()) span.info.cost = {};  // bytes are counted in the step in which the call ends
        // NCCL forwards a broadcast around a ring; on emulated links the root sends it to every rank.
        else if (system.kind() == SystemKind::gpu && name_of(CommCall::broadcast) == std::string_view(span.info.name))
          span.info.cost.bytes = span.info.bytes;
      }
    const StepStats stats = StepMeter(prediction.links).measure(rows, *(ends.end() - 2), ends.back());
    prediction.ranks[i] = {rank_name(players[i].rank, layout.mesh), stats};
  });
  StepStats all;
  for (size_t i = 0; i < players.size(); ++i)
    for (int64_t rank = 0; rank < players[i].ranks; ++rank) all += prediction.ranks[i].sum;
  const int64_t batch = *config.batch.global_batch_size;
  const StepWork work{.tokens = batch * config.model.seq_length,
                      .flops = flops_per_step(model_spec_of(config.model), batch, config.train.flops_convention),
                      .ranks = layout.mesh.world(),
                      .peak_tflops = prediction.peak.tflops};
  report_speed(prediction.step, work, seconds_of_step(replayed, steps), all);
  prediction.memory = memory_of_worst_rank(config, layout, system);
  prediction.memory_bytes = sum_of(prediction.memory);
  prediction.capacity_bytes = device_bytes(system, layout.mesh.world());
  const int64_t origin = end_of_step(replayed, steps - 2);
  if (!asked.trace.empty()) write_trace(asked.trace, performance, layout, origin, trace_ranks);
  if (!asked.picture.empty()) write_file(asked.picture, picture_of(asked.picture, performance, layout, origin, system));
  return prediction;
}

std::vector<TextBlock> describe(const Prediction& p, const System& system) {
  const StepReport& step = p.step;
  TextBlock plan{.title = "plan",
                 .rows = {{"system", fmt::format("{}, {} ranks", system.name, step.ranks)},
                          {"step", fmt::format("{:.4g} s", step.step_seconds)},
                          {"tokens/s", fmt::format("{:.4g}, {:.4g} per rank", step.tokens_per_second,
                                                   step.tokens_per_second / step.ranks)},
                          {"model FLOP/s", fmt::format("{:.4g} TFLOP/s per rank", step.model_tflops_per_rank)},
                          {"MFU", fmt::format("{:.1f} % of the peak in {}", 100 * step.mfu, p.peak.arithmetic)},
                          {"bubble", fmt::format("{:.1f} %", 100 * step.bubble_fraction)}}};
  TextBlock memory{.title = "memory of the rank that needs most"};
  for (const MemoryItem& item : p.memory) memory.rows.push_back({item.name, bytes_text(item.bytes)});
  memory.rows.push_back({"total", fmt::format("{} of {}{}", bytes_text(p.memory_bytes), bytes_text(p.capacity_bytes),
                                              p.fits() ? "" : ": does not fit")});
  TimeTable table(step.ranks, p.links);
  table.add(step.stats);
  std::vector<TextBlock> blocks{plan, memory};
  for (TextBlock& block : table.describe(p.ranks)) blocks.push_back(std::move(block));
  return blocks;
}

nlohmann::ordered_json json_of(const Prediction& p, const System& system) {
  const StepReport& step = p.step;
  const auto mean_seconds = [&](int64_t ns) { return static_cast<double>(ns) * 1e-9 / step.ranks; };
  nlohmann::ordered_json json = {{"system", system.name},
                                 {"ranks", step.ranks},
                                 {"step_seconds", step.step_seconds},
                                 {"tokens_per_second_per_rank", step.tokens_per_second / step.ranks},
                                 {"mfu", step.mfu},
                                 {"mfu_peak", p.peak.arithmetic},
                                 {"model_flops_per_second_per_rank", step.model_tflops_per_rank * 1e12}};
  for (size_t k = 0; k < kCommClasses.size(); ++k) {
    json["exposed_seconds"][std::string(kCommClasses[k])] = mean_seconds(step.stats.exposed[k]);
    json["wait_seconds"][std::string(kCommClasses[k])] = mean_seconds(step.stats.wait[k]);
  }
  json["compute_seconds"] = mean_seconds(step.stats.compute);
  json["optimizer_seconds"] = mean_seconds(step.stats.optimizer);
  json["host_seconds"] = mean_seconds(step.stats.host);
  json["idle_seconds"] = mean_seconds(step.stats.idle);
  json["bubble_fraction"] = step.bubble_fraction;
  json["memory_bytes"] = p.memory_bytes;
  json["fits"] = p.fits();
  for (const MemoryItem& item : p.memory) json["memory"][item.name] = item.bytes;
  return json;
}

}  // namespace trivet
