#include "engine/plan/predict.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>

#include "base/files.h"
#include "base/json.h"
#include "engine/metrics/perfetto.h"
#include "engine/plan/costs.h"
#include "engine/plan/device_memory.h"
#include "engine/plan/habits.h"
#include "engine/plan/thread_ranks.h"
#include "engine/train/rank_state.h"

namespace trivet {
namespace {

int64_t ns_of(double seconds) { return std::llround(seconds * 1e9); }

// The names of a tape's streams in a trace.
std::vector<std::string> rows_of(const Tape& tape) {
  std::vector<std::string> rows;
  for (size_t s = 0; s < tape.streams.size(); ++s)
    rows.push_back(tape.streams[s].empty() ? fmt::format("stream {}", s) : tape.streams[s]);
  return rows;
}

void write_trace(const std::string& path, const Rehearsal& played, const Layout& layout, const Replayed& replayed,
                 int64_t origin_ns) {
  std::vector<std::string> parts;
  for (const Replayed::Traced& traced : replayed.traced) {
    const Player& player = played.players[static_cast<size_t>(traced.player)];
    parts.push_back(fmt::format("{}.rank{}", path, player.rank));
    PerfettoWriter writer(parts.back(), player.rank,
                          {.process = rank_name(player.rank, layout.mesh), .rows = rows_of(*player.tape)}, origin_ns,
                          [](const std::string& text) { throw IoError(text); });
    writer.step(1, traced.rows(player, played.groups));
    writer.close();
  }
  join_traces(parts, path);
  for (const std::string& part : parts) std::filesystem::remove(part);
}

// When the last rank has done the step.
int64_t end_of(const Replayed& replayed, size_t step) {
  int64_t last = 0;
  for (const std::vector<int64_t>& ends : replayed.step_ends) last = std::max(last, ends[step]);
  return last;
}

}  // namespace

double step_seconds(const Replayed& replayed) {
  const size_t steps = replayed.step_ends.front().size();
  return static_cast<double>(end_of(replayed, steps - 1) - end_of(replayed, 0)) * 1e-9 / static_cast<double>(steps - 1);
}

int64_t SystemCosts::work_ns(const TapeWork& work, bool) const { return ns_of(work_seconds(system_, plan_, work)); }

CallCost SystemCosts::call_cost(const TapeCall& call, const TapeGroups::Group& group) const {
  std::map<int, int> by_node;
  for (const int rank : group.world_ranks) ++by_node[rank / system_.gpus_per_node];
  const bool across = by_node.size() > 1;
  const Port port = across ? Port::network : Port::link;
  if (call.kind == CommCall::transfer) {
    // Of a larger group, the two ends may be on one node.
    const bool alone = group.world_ranks.size() == 2;
    const double share = system_.network_gb_per_s * system_.network_share / system_.nvlink_gb_per_s;
    return {ns_of(transfer_seconds(system_, call.bytes, across && alone)), alone ? port : Port::link,
            across && alone ? std::min(1.0, share) : 1};
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
  return launches ? ns_of(launch_seconds(system_, plan_)) : 0;
}

Prediction predict(const Config& config, const Layout& layout, const System& system, const std::string& trace,
                   bool full) {
  const bool on_cpus = system.kind() == SystemKind::cpu;
  const int threads = on_cpus ? threads_of_rank(config, system, layout.mesh.world()) : 1;
  Rehearsal rehearsal = rehearse(config, layout, {.one_ahead = !on_cpus, .cpu = on_cpus});
  if (on_cpus) play_on_threads(rehearsal, links_of(config.comm));
  Rehearsal each_rank;
  if (full) each_rank.players = rehearsal.players, each_rank.groups = rehearsal.groups;
  if (!on_cpus) merge_ranks(rehearsal, system.gpus_per_node);
  const Rehearsal& played = full ? each_rank : rehearsal;
  const int steps = rehearsal.tapes.front().steps;
  ReplayOptions options{.first_step = steps - 1};
  for (size_t kind = 0; kind < rehearsal.players.size(); ++kind)
    options.traced.push_back(full ? rehearsal.players[kind].rank : static_cast<int>(kind));
  std::unique_ptr<ReplayCosts> costs = std::make_unique<SystemCosts>(system, config.plan);
  if (on_cpus) costs = std::make_unique<ThreadCosts>(system, threads, links_of(config.comm), config.comm.shared_port);
  const Replayed replayed = replay(played.players, played.groups, *costs, options);

  Prediction prediction{.tapes = static_cast<int>(rehearsal.tapes.size()), .records = replayed.records};
  StepMeter meter;
  StepStats all;
  for (size_t kind = 0; kind < rehearsal.players.size(); ++kind) {
    const Replayed::Traced& traced = replayed.traced[kind];
    const auto number = static_cast<size_t>(traced.player);
    const Player& player = played.players[number];
    const std::vector<int64_t>& ends = replayed.step_ends[number];
    const StepStats stats = meter.measure(traced.rows(player, played.groups), ends[static_cast<size_t>(steps) - 2],
                                          ends[static_cast<size_t>(steps) - 1]);
    prediction.ranks.push_back({rank_name(player.rank, layout.mesh), stats});
    for (int64_t i = 0; i < rehearsal.players[kind].ranks; ++i) all += stats;
  }
  const int64_t batch = *config.batch.global_batch_size;
  const StepWork work{
      .tokens = batch * config.model.seq_length,
      .flops = flops_per_step(model_spec_of(config.model), batch, config.train.flops_convention),
      .ranks = layout.mesh.world(),
      .peak_tflops = threads * (config.precision.dtype == DType::bf16 ? system.bf16_tflops : system.fp32_tflops)};
  report_speed(prediction.step, work, step_seconds(replayed), all);
  prediction.memory = memory_of_worst_rank(config, layout, system);
  prediction.memory_bytes = sum_of(prediction.memory);
  prediction.capacity_bytes = device_bytes(system);
  if (!trace.empty()) write_trace(trace, played, layout, replayed, end_of(replayed, static_cast<size_t>(steps) - 2));
  return prediction;
}

std::vector<TextBlock> describe(const Prediction& p, const System& system) {
  const StepReport& step = p.step;
  TextBlock plan{.title = "plan",
                 .rows = {{"system", fmt::format("{}, {} ranks", system.name, step.ranks)},
                          {"step", fmt::format("{:.4g} s", step.step_seconds)},
                          {"tokens/s", fmt::format("{:.4g}, {:.4g} a rank", step.tokens_per_second,
                                                   step.tokens_per_second / step.ranks)},
                          {"model FLOP/s", fmt::format("{:.4g} TFLOP/s a rank", step.model_tflops_per_rank)},
                          {"MFU", fmt::format("{:.1f} %", 100 * step.mfu)},
                          {"bubble", fmt::format("{:.1f} %", 100 * step.bubble_fraction)}}};
  TextBlock memory{.title = "memory of the rank that needs most"};
  for (const MemoryItem& item : p.memory) memory.rows.push_back({item.name, bytes_text(item.bytes)});
  memory.rows.push_back({"total", fmt::format("{} of {}{}", bytes_text(p.memory_bytes), bytes_text(p.capacity_bytes),
                                              p.fits() ? "" : ": does not fit")});
  TimeTable table(step.ranks);
  table.add(step.stats);
  std::vector<TextBlock> blocks{plan, memory};
  for (TextBlock& block : table.describe(p.ranks)) blocks.push_back(std::move(block));
  return blocks;
}

std::string to_json(const Prediction& p, const System& system) {
  const StepReport& step = p.step;
  const auto mean_seconds = [&](int64_t ns) { return static_cast<double>(ns) * 1e-9 / step.ranks; };
  nlohmann::ordered_json json = {{"system", system.name},
                                 {"ranks", step.ranks},
                                 {"step_seconds", step.step_seconds},
                                 {"tokens_per_second_per_rank", step.tokens_per_second / step.ranks},
                                 {"mfu", step.mfu},
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
  return json.dump(2) + '\n';
}

}  // namespace trivet
