#include "tools/mlperf/rules.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/scalar.h"
#include "base/statistics.h"

namespace trivet::mlperf {
namespace {

constexpr const char *kWarmup = "opt_learning_rate_warmup_steps", *kDecay = "opt_learning_rate_decay_steps";

double of(int64_t samples, int64_t batch) { return static_cast<double>(samples) / static_cast<double>(batch); }

// ---- GPT-3 175B: "GPT3 hyperparameter constraints"; the checkpoint was trained for 4,000 steps of 1,536 sequences

std::vector<double> gpt3_rates(int64_t batch) {
  if (batch >= 1536 && batch <= 3072) return {2e-5};
  if (batch >= 4096 && batch <= 8192) return {3e-5};
  return {2e-5, 3e-5};
}
constexpr Steps kGpt3Steps[] = {
    {kWarmup, [](int64_t batch, double) { return of(265 * 1536, batch); }},
    {kDecay, [](int64_t batch, double) { return of(108'600 * 1536, batch); }},
    {"init_checkpoint_step", [](int64_t batch, double) { return of(4000 * 1536, batch); }},
};
double tenth(double base_rate) { return base_rate / 10; }

// ---- Llama 3.1 405B: "Llama 3.1 405b hyperparameter constraints"

// The double at or next to 8e-5 * batch / 1152 that passes the checker, which compares products. For some batches, none
// passes.
std::vector<double> llama_405b_rates(int64_t batch) {
  const double product = static_cast<double>(batch) * 8e-5, rate = product / 1152;
  for (const double next : {rate, std::nextafter(rate, 0.0), std::nextafter(rate, 1.0)})
    if (next * 1152 == product) return {next};
  return {rate};
}
double llama_405b_end_rate(double) { return 8e-7; }
int64_t llama_405b_skipped(int64_t batch) {
  return static_cast<int64_t>(std::floor(0.0026 * static_cast<double>(batch) + 12));
}
constexpr Steps kLlama405bSteps[] = {
    {kWarmup, [](int64_t batch, double) { return of(8000 * 1152, batch); }},
    {kDecay,
     [](int64_t batch, double) { return std::ceil(of(1'382'400'000, batch)) - std::ceil(of(8000 * 1152, batch)); },
     true, true},
};

// ---- the benchmarks

// adam: the optimizer's name, which is also part of its constants' keys; weight_decay: the key of that constant.
Benchmark row_of(std::string_view name, std::string_view first, std::string_view last, const std::string& adam,
                 const char* weight_decay, double epsilon, int64_t sequence_length) {
  Benchmark row{.name = name, .first = first, .last = last, .sequence_length = sequence_length};
  row.constants = {{"opt_name", {adam}},
                   {"opt_" + adam + "_beta_1", {0.9}},
                   {"opt_" + adam + "_beta_2", {0.95}},
                   {"opt_" + adam + "_epsilon", {epsilon}},
                   {weight_decay, {0.1}},
                   {"opt_gradient_clip_norm", {1.0}},
                   {"opt_learning_rate_decay_schedule", {"cosine with linear warmup"}},
                   {"max_sequence_length", {sequence_length}}};
  return row;
}

Benchmark gpt3(std::string_view first, std::string_view last, std::vector<ReferencePoint> points) {
  Benchmark row = row_of("gpt3", first, last, "adam", "opt_weight_decay", 1e-8, 2048);
  row.counts_tokens = true, row.target = 2.69, row.cadence = 24'576, row.runs = 3;
  row.constants.push_back({"eval_samples", {24'567, 11'590'004}});  // sequences, or tokens
  row.least_batch = 1536, row.most_batch = 8192;
  if (first == "3.0") row.init_minutes = 60;  // per the round's appendix; the checker allows 30
  row.base_rates = gpt3_rates, row.end_rate = tenth;
  row.steps.assign(std::begin(kGpt3Steps), std::end(kGpt3Steps));
  row.reference_points = std::move(points);
  return row;
}

Benchmark llama31_405b(std::string_view first, std::string_view last, int64_t cadence,
                       std::vector<ReferencePoint> points) {
  Benchmark row = row_of("llama31_405b", first, last, "adamw", "opt_adamw_weight_decay", 1e-5, 8192);
  row.target = 5.6, row.cadence = cadence, row.runs = 3, row.leeway = 46'080;
  row.constants.push_back({"eval_samples", {5760}}), row.constants.push_back({"init_checkpoint_step", {0}});
  row.least_batch = 1152, row.most_batch = 9216;
  row.base_rates = llama_405b_rates, row.scaled_rate = true, row.end_rate = llama_405b_end_rate;
  row.steps.assign(std::begin(kLlama405bSteps), std::end(kLlama405bSteps));
  // Runs of round 5.0 logged the decay steps for batch 1,152 at every batch size, and that ruleset accepts any value.
  if (first == "5.0") row.steps.back().logged = false;
  else row.skipped_evaluations = llama_405b_skipped;
  row.reference_points = std::move(points);
  return row;
}

Benchmark llama31_8b() {
  Benchmark row = row_of("llama31_8b", "5.1", "6.1", "adamw", "opt_adamw_weight_decay", 1e-5, 8192);
  row.target = 3.3, row.cadence = 12'288, row.runs = 10;
  row.constants.push_back({"eval_samples", {1024}}), row.constants.push_back({"max_steps", {1'200'000}});
  row.end_rate = tenth;
  row.steps = {{kDecay, [](int64_t, double warmup) { return 1'200'000 - warmup; }}};
  row.reference_points = {{16, {{13, 17}, {14, 3}}},
                          {32, {{14, 9}, {15, 10}, {16, 1}}},
                          {64, {{17, 4}, {18, 4}, {19, 11}, {20, 1}}},
                          {96, {{21, 2}, {22, 10}, {23, 4}, {24, 4}}, 129 * 96},
                          {128, {{25, 2}, {26, 2}, {27, 4}, {28, 4}, {29, 3}, {30, 3}, {31, 1}, {33, 1}}}};
  return row;
}

// ---- reference points

struct Point {
  double batch, mean, deviation;  // deviation: the population standard deviation
  int64_t runs;
};

double between(double x, const Point& low, const Point& high, double Point::*member) {
  return low.*member + (high.*member - low.*member) * (x - low.batch) / (high.batch - low.batch);
}

Point point_of(double batch, const std::vector<double>& positions) {
  const auto n = static_cast<double>(positions.size());
  const double mean = std::accumulate(positions.begin(), positions.end(), 0.0) / n;
  double squares = 0;
  for (const double x : positions) squares += (x - mean) * (x - mean);
  return {batch, olympic_mean(positions), std::sqrt(squares / n), static_cast<int64_t>(positions.size())};
}

// The points that bound how fast the reference converges. Drops points slower than the interpolation between their
// neighbours, and points at smaller batches than the fastest point's.
std::vector<Point> pruned_points(const Benchmark& benchmark) {
  std::vector<Point> points;
  for (const ReferencePoint& point : benchmark.reference_points) {
    const int64_t interval = point.interval > 0 ? point.interval : benchmark.interval(point.batch);
    std::vector<double> positions;
    for (const auto& [evaluation, runs] : point.reached)
      positions.insert(positions.end(), static_cast<size_t>(runs), static_cast<double>(evaluation * interval));
    points.push_back(point_of(static_cast<double>(point.batch), positions));
  }
  points.erase(points.begin(), std::ranges::min_element(points, {}, &Point::mean));
  for (size_t i = 1; i + 1 < points.size();) {
    const bool slow = points[i].mean > between(points[i].batch, points[i - 1], points[i + 1], &Point::mean);
    if (slow) points.erase(points.begin() + static_cast<std::ptrdiff_t>(i));
    else ++i;
  }
  return points;
}

// Like _find_min_acceptable_mean(), but computed from the quantile instead of by bisection. The best and the worst run
// of both the reference and the result are dropped.
double least_mean(double mean, double deviation, int64_t reference_runs, int64_t runs) {
  reference_runs -= 2, runs -= 2;
  const double scale = std::sqrt(1.0 / static_cast<double>(reference_runs) + 1.0 / static_cast<double>(runs));
  return mean - student_t_quantile(0.95, reference_runs + runs - 2) * deviation * scale;
}

}  // namespace

const nlohmann::json* Benchmark::constant(std::string_view key) const {
  const auto at = std::ranges::find(constants, key, &Constant::key);
  return at == constants.end() ? nullptr : &at->allowed.front();
}

std::optional<double> Benchmark::steps_of(std::string_view key, int64_t batch, double warmup) const {
  for (const Steps& each : steps)
    if (each.key == key) return each.formula(batch, warmup);
  return {};
}

std::span<const Benchmark> benchmarks() {
  using Points = std::vector<ReferencePoint>;
  static const Points gpt3_first = {{1536, {{23, 3}, {24, 1}, {25, 2}}},
                                    {2048, {{23, 3}, {24, 3}}},
                                    {3072, {{24, 5}, {25, 1}}},
                                    {4096, {{25, 5}, {26, 1}}},
                                    {8192, {{32, 4}, {33, 2}}}};
  static const Points gpt3_last = {{1536, {{23, 3}, {24, 1}, {25, 2}}},
                                   {2048, {{23, 4}, {24, 3}}},
                                   {3072, {{24, 5}, {25, 1}, {274, 1}}},  // 274: a typo in the official file
                                   {4096, {{25, 5}, {26, 1}}},
                                   {6144, {{28, 6}}},
                                   {8192, {{32, 4}, {33, 2}}}};
  static const Points llama_first = {{1008, {{7, 6}}},           {1152, {{7, 6}}},
                                     {2304, {{8, 4}, {9, 2}}},   {4608, {{10, 2}, {11, 4}}},
                                     {6912, {{12, 3}, {13, 3}}}, {9216, {{14, 2}, {15, 2}, {16, 2}}}};
  static const Points llama_last = {
      {1152, {{16, 1}, {17, 4}, {18, 1}}}, {2304, {{19, 1}, {20, 4}, {21, 1}}}, {4608, {{25, 1}, {26, 1}, {27, 4}}}};
  static const std::vector<Benchmark> rows = {gpt3("3.0", "3.0", gpt3_first),
                                              gpt3("3.1", "4.0", gpt3_first),
                                              gpt3("4.1", "4.1", gpt3_last),
                                              llama31_405b("5.0", "5.0", 46'080, llama_first),
                                              llama31_405b("5.1", "6.0", 18'432, llama_last),
                                              llama31_8b()};
  return rows;
}

const Benchmark* find_benchmark(std::string_view name, std::string_view round) {
  if (!round.empty() && std::ranges::find(kRounds, round) == std::end(kRounds)) return nullptr;
  const Benchmark* found = nullptr;
  for (const Benchmark& row : benchmarks())
    if (row.name == name && (round.empty() || (row.first <= round && round <= row.last))) found = &row;
  return found;
}

const std::vector<std::string_view>& precisions() {
  static const std::vector<std::string_view> words =
      split_words("fp64,fp32,tf32,fp16,fp8,mxfp6,nvfp4,mxfp4,bfloat16,Graphcore FLOAT 16.16,int8,uint8,int4,uint4");
  return words;
}

const std::vector<std::string_view>& known_keys() {
  static const std::vector<std::string_view> keys = split_words(
      "block_start,block_stop,cache_clear,config_filename,context_parallelism,epoch_start,epoch_stop,eval_accuracy,"
      "eval_samples,eval_start,eval_stop,expert_parallelism,global_batch_size,gradient_accumulation_steps,"
      "init_checkpoint_step,init_start,init_stop,lowest_numerical_precision_in_attn,lowest_numerical_precision_in_comm,"
      "lowest_numerical_precision_in_linear,max_sequence_length,max_steps,micro_batch_size,opt_adam_beta_1,"
      "opt_adam_beta_2,opt_adam_epsilon,opt_adamw_beta_1,opt_adamw_beta_2,opt_adamw_epsilon,opt_adamw_weight_decay,"
      "opt_base_learning_rate,opt_end_learning_rate,opt_gradient_clip_norm,opt_learning_rate_decay_schedule,"
      "opt_learning_rate_decay_steps,opt_learning_rate_warmup_steps,opt_name,opt_weight_decay,pipeline_parallelism,"
      "run_start,run_stop,seed,submission_benchmark,submission_division,submission_org,submission_platform,"
      "submission_status,target_accuracy,tensor_parallelism,tracked_stats,train_samples,trained_samples");
  return keys;
}

double olympic_mean(std::vector<double> values) {
  std::ranges::sort(values);
  return std::accumulate(values.begin() + 1, values.end() - 1, 0.0) / static_cast<double>(values.size() - 2);
}

std::optional<Convergence> reference_convergence(const Benchmark& benchmark, int64_t batch) {
  const std::vector<Point> points = pruned_points(benchmark);
  const auto x = static_cast<double>(batch);
  const auto above = std::ranges::lower_bound(points, x, {}, &Point::batch);
  if (above == points.end()) return {};
  if (above->batch == x || above == points.begin())
    return Convergence{above->mean,
                       least_mean(above->mean, above->deviation, above->runs, benchmark.runs) - benchmark.leeway,
                       above->batch != x};
  const Point& low = above[-1];
  const double mean = between(x, low, *above, &Point::mean);
  // Without reference runs at this batch size, the checker assumes that twice a result's runs remain after trimming.
  const double deviation = between(x, low, *above, &Point::deviation);
  return Convergence{mean, least_mean(mean, deviation, 2 * benchmark.runs + 2, benchmark.runs) - benchmark.leeway};
}

Convergence convergence_of(const std::vector<double>& reached, int64_t runs) {
  const Point point = point_of(0, reached);
  return {point.mean, least_mean(point.mean, point.deviation, point.runs, runs)};
}

}  // namespace trivet::mlperf
