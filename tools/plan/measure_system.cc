// Fits the constants of a CPU spec to measured steps.
#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "base/host.h"
#include "base/statistics.h"
#include "kernels/base/device.h"
#include "tools/plan/measure.h"
#include "tools/plan/thread_ranks.h"

namespace trivet {
namespace {

// Interference from other processes, or from a core's other hyperthread, comes and goes within seconds, so rounds are
// spread over time and each op's shortest time counts.
constexpr int kRounds = 3, kSteps = 4;
using Works = std::vector<MeasuredOps::Work>;
using Calls = std::vector<MeasuredOps::Call>;

// Each model's weights and gradients, 50 MB and more, exceed most last-level caches, as in real models.
const std::vector<std::vector<std::string>> kModels = {
    {"model.num_layers=8"},
    {"model.num_layers=8", "batch.micro_batch_size=4"},
    {"model.num_layers=4", "model.hidden_size=384", "model.num_attention_heads=6", "model.seq_length=128",
     "batch.micro_batch_size=8"},
    {"model.num_layers=2", "model.hidden_size=512", "model.num_attention_heads=16", "model.seq_length=512"}};

Works measured(const std::vector<std::string>& more, int ranks = 1) {
  Works all;
  for (std::vector<std::string> sets : kModels) {
    sets.insert(sets.end(), more.begin(), more.end());
    for (const MeasuredOps::Work& work : measure_run(sets, ranks, kSteps).works) all.push_back(work);
  }
  return all;
}

// The measurements of one round.
struct Round {
  Works fp32, bf16;
  Works shared, team;  // one single-threaded rank per core; one rank with a thread per core
  Calls calls;
};

Round measure_round(int cores) {
  Round round{.fp32 = measured({}), .bf16 = measured({"precision.dtype=bf16"}), .shared = {}, .team = {}, .calls = {}};
  if (cores > 1) {
    round.shared = measured({}, cores);
    round.team = measured({fmt::format("device.threads_per_rank={}", cores)});
  }
  for (const char* one :
       {"parallel.bucket_size=100000000", "parallel.bucket_size=100000", "parallel.tensor_model_parallel_size=2"})
    for (const auto& call : measure_run({one}, std::max(2, cores), kSteps).calls) round.calls.push_back(call);
  return round;
}

template <class T>
void take_least(std::vector<T>& of, const std::vector<T>& other) {
  for (size_t i = 0; i < of.size(); ++i) of[i].seconds = std::min(of[i].seconds, other.at(i).seconds);
}

Round measure_rounds(int cores, const std::function<void(const std::string&)>& note) {
  Round all;
  for (int i = 0; i < kRounds; ++i) {
    note(fmt::format("round {} of {}", i + 1, kRounds));
    const Round round = measure_round(cores);
    if (i == 0) all = round;
    for (auto part : {&Round::fp32, &Round::bf16, &Round::shared, &Round::team}) take_least(all.*part, round.*part);
    take_least(all.calls, round.calls);
  }
  return all;
}

double sum(std::span<const MeasuredOps::Work> works) {
  double seconds = 0;
  for (const auto& work : works) seconds += work.seconds;
  return seconds;
}

// The non-negative x that best satisfies dot(row, x) = 1 for all rows: least squares by cyclic coordinate descent,
// reweighted for the soft-L1 loss, so that a disturbed step has little influence.
template <size_t N>
std::array<double, N> fit_to_one(const std::vector<std::array<double, N>>& rows) {
  constexpr double kScale = 0.05;  // larger errors are outliers
  std::array<double, N> x{};
  const auto error = [&](const std::array<double, N>& row) {
    double rest = 1;
    for (size_t j = 0; j < N; ++j) rest -= row[j] * x[j];
    return rest;
  };
  for (int round = 0; round < 2000; ++round)
    for (size_t i = 0; i < N; ++i) {
      double gradient = 0, curvature = 0;
      for (const auto& row : rows) {
        const double rest = error(row), weight = round == 0 ? 1 : 1 / std::hypot(1, rest / kScale);
        gradient += weight * row[i] * (rest + row[i] * x[i]), curvature += weight * row[i] * row[i];
      }
      if (curvature > 0) x[i] = std::max(0.0, gradient / curvature);
    }
  return x;
}

// An op's time beyond the fixed time of the smallest ops.
double own_seconds(const MeasuredOps::Work& work, const System& system) {
  return std::max(work.seconds - 1e-6 * system.kernel_us, 0.1 * work.seconds);
}
double rate_of(double seconds_per) { return seconds_per > 1e-5 ? 1 / seconds_per : 1e5; }

// Fits the GEMM rates: a GEMM's time is its FLOPs at the peak rate plus its packing.
void fit_gemms(std::span<const MeasuredOps::Work> works, System& system) {
  std::vector<std::array<double, 3>> rows;
  for (const auto& work : works) {
    if (work.what.kind != TapeWork::gemm) continue;
    const CpuWork parts = cpu_work(work.what);
    const double own = own_seconds(work, system), scaled = parts.flops / own / 1e12;
    const bool bf16 = work.what.dtype == DType::bf16;
    rows.push_back({bf16 ? 0 : scaled, bf16 ? scaled : 0, parts.cache_bytes / own / 1e9});
  }
  const auto [fp32, bf16, packing] = fit_to_one(rows);
  system.fp32_tflops = 1 / fp32, system.bf16_tflops = 1 / bf16, system.cache_gb_per_s = rate_of(packing);
}

bool is_other(const TapeWork& work) { return work.kind == TapeWork::memory || work.kind == TapeWork::loss; }

void fit_small_ops(std::span<const MeasuredOps::Work> works, System& system) {
  std::vector<double> small;
  for (const auto& [what, seconds] : works)
    if (is_other(what) && what.bytes <= 1024) small.push_back(seconds * 1e6);
  system.kernel_us = median(small);
}

// Fits each rate to the total time of the ops that it bounds, so that the time of a whole step is right.
void fit_other_ops(std::span<const MeasuredOps::Work> works, System& system) {
  double elements = 0, bytes = 0, of_elements = 0, of_bytes = 0;
  for (const auto& work : works) {
    if (!is_other(work.what)) continue;
    const CpuWork parts = cpu_work(work.what);
    const double own = own_seconds(work, system) - parts.cache_bytes / (1e9 * system.cache_gb_per_s);
    (parts.elements > 0 ? of_elements : of_bytes) += own;
    elements += parts.elements, bytes += parts.state_bytes;
  }
  system.vector_g_per_s = rate_of(std::max(0.0, of_elements) * 1e9 / elements);
  system.memory_gb_per_s = rate_of(of_bytes * 1e9 / bytes);
}

void fit_attention(std::span<const MeasuredOps::Work> works, System& system) {
  std::vector<std::array<double, 3>> rows;
  for (const auto& work : works) {
    if (work.what.kind != TapeWork::attention) continue;
    const CpuWork parts = cpu_work(work.what);
    const double peak = 1e12 * (work.what.dtype == DType::bf16 ? system.bf16_tflops : system.fp32_tflops);
    const double own = own_seconds(work, system), at_peak = parts.flops / peak / own;
    const bool backward = work.what.backward;
    rows.push_back({backward ? 0 : at_peak, backward ? at_peak : 0, parts.scores / own / 1e9});
  }
  const auto [forward, backward, scores] = fit_to_one(rows);
  system.attention_forward = std::clamp(1 / forward, 0.01, 1.0);
  system.attention_backward = std::clamp(1 / backward, 0.01, 1.0);
  system.score_g_per_s = rate_of(scores);
}

// Fits the median overhead of running an op on several threads, in addition to the op's priced work.
void fit_teams(std::span<const MeasuredOps::Work> works, System& system) {
  if (system.cores == 1) return;
  std::vector<double> more;
  for (const auto& [what, seconds] : works)
    more.push_back(1e6 * (seconds / system.contention - cpu_work_seconds(system, what, system.cores)));
  system.team_us = std::max(0.0, median(more));
}

void fit_calls(const Calls& calls, System& system) {
  std::vector<std::array<double, 2>> rows;
  for (const auto& call : calls)
    rows.push_back({static_cast<double>(call.bytes) / call.seconds / 1e9, 2e-6 / call.seconds});
  const auto [bytes, wake] = fit_to_one(rows);
  system.copy_gb_per_s = rate_of(bytes);
  system.wake_us = wake;
}

std::string kind_of(const TapeWork& work) {
  if (work.kind == TapeWork::gemm) return fmt::format("GEMM, {}", name_of(work.dtype));
  if (work.kind == TapeWork::attention)
    return fmt::format("attention {}, {}", work.backward ? "backward" : "forward", name_of(work.dtype));
  return work.category == Category::optimizer ? "optimizer" : fmt::format("other, {}", name_of(work.dtype));
}

TextBlock describe_fit(const Works& works, const System& system) {
  struct Row {
    double seconds = 0, fitted = 0;
    std::vector<double> errors = {};
  };
  std::map<std::string, Row> kinds;
  for (const auto& [what, seconds] : works) {
    const double fitted = cpu_work_seconds(system, what, 1);
    Row& row = kinds[kind_of(what)];
    row.seconds += seconds, row.fitted += fitted;
    row.errors.push_back(std::abs(fitted / seconds - 1));
  }
  TextBlock block{.title = "fit to the ops of a rank alone"};
  block.column("", 'l'), block.column("ops", 'r'), block.column("ms", 'r'), block.column("fitted / measured", 'r');
  block.column("median error", 'r');
  for (const auto& [name, row] : kinds)
    block.rows.push_back({name, std::to_string(row.errors.size()), fmt::format("{:.1f}", 1e3 * row.seconds),
                          fmt::format("{:.3f}", row.fitted / row.seconds),
                          fmt::format("{:.1f} %", 100 * median(row.errors))});
  return block;
}

// The measurement that each of a spec's constants was fitted to.
constexpr std::array kOrigins = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"fp32_tflops", "of a core: GEMMs of a step, without their packing"},
    {"bf16_tflops", "the same"},
    {"attention_forward", "of those rates"},
    {"attention_backward", "of those rates"},
    {"memory_gib", "of the machine"},
    {"memory_gb_per_s", "of a core: the optimizer's ops"},
    {"kernel_us", "the smallest ops"},
    {"contention", "a rank with one thread on every core, over one rank alone"},
    {"power_watts", "0: unknown"},
    {"cores", "usable"},
    {"cache_gb_per_s", "of a core: operands and results of GEMMs, and of norms, activations, sums"},
    {"vector_g_per_s", "of a core: elements of norms, activations, sums"},
    {"score_g_per_s", "of a core: scores of attention, once for each product"},
    {"copy_gb_per_s", "of a core: collectives between threads"},
    {"team_us", "one rank with a thread on every core"},
    {"wake_us", "small collectives between threads"},
});

}  // namespace

void fit_ops(std::span<const MeasuredOps::Work> works, System& system) {
  fit_small_ops(works, system);
  fit_gemms(works, system);
  fit_other_ops(works, system);
  fit_attention(works, system);
}

MeasuredSystem measure_system(System system, const std::function<void(const std::string&)>& note) {
  const std::unique_ptr<Device> device = create_cpu_device();
  system.cores = usable_cores();
  system.memory_gib = static_cast<double>(device->memory_bytes()) / (1 << 30);
  system.contention = 1;

  const Round round = measure_rounds(system.cores, note);
  Works works = round.bf16;
  works.insert(works.end(), round.fp32.begin(), round.fp32.end());
  fit_ops(works, system);
  if (system.cores > 1) {
    system.contention = std::max(1.0, sum(round.shared) / sum(round.fp32));
    fit_teams(round.team, system);
  }
  fit_calls(round.calls, system);
  return {system, device->name(), describe_fit(works, system)};
}

std::string page_of(const MeasuredSystem& measured) {
  std::string text =
      fmt::format("# {}, {} cores: measured by trivet plan --calibrate. Ranks are threads of a process.\n",
                  measured.processor, measured.system.cores);
  for (const auto& [name, origin] : kOrigins) {
    const SystemKey& key = *std::ranges::find(system_keys(), name, &SystemKey::name);
    const std::string line = fmt::format("{}: {:.4g}", name, value_of(measured.system, key));
    text += fmt::format("{:<28} # {}{}{}\n", line, key.unit, key.unit.empty() ? "" : "; ", origin);
  }
  return text;
}

}  // namespace trivet
