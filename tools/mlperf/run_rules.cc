// The rules about a single run: one short function per rule, and the table that lists them.
#include <algorithm>
#include <cmath>
#include <fmt/ranges.h>
#include <map>

#include "base/scalar.h"
#include "base/statistics.h"
#include "base/text.h"
#include "tools/mlperf/run.h"

namespace trivet::mlperf {
namespace {

using enum Level;

bool whole(double x) { return x == std::floor(x); }
bool close(double a, double b) { return std::fabs(a - b) <= 1e-6 * std::fabs(b); }
std::string shown(double x) {
  return whole(x) && std::fabs(x) < 1e15 ? grouped(std::llround(x)) : fmt::format("{:.10g}", x);
}

// ---- malformed lines, unknown benchmarks and keys

void broken_lines(const Run& run, const Report& report) {
  std::vector<Evidence> lines;
  for (const Printed& line : run.log.broken) lines.push_back({run.log.path, line.line, line.text});
  if (!lines.empty())
    report(error, lines, "lines with \":::MLLOG \": expected an object with time_ms, key, value and metadata");
  else if (run.log.records.empty())
    report(error, {}, "{}: found no line with \":::MLLOG \", expected the log of a run", run.log.path);
}

void subject(const Run& run, const Report& report) {
  if (!run.benchmark)
    report(cannot_know, {run.at("submission_benchmark")},
           "{}: submission_benchmark: found {}, expected a language model of this round: little was checked",
           run.log.path, quote(run.log.text("submission_benchmark")));
  else if (run.batch == 0)
    report(cannot_know, {run.at("global_batch_size")}, "{}: global_batch_size: found no valid one: little was checked",
           run.log.path);
}

void misspelt_keys(const Run& run, const Report& report) {
  if (!run.benchmark && run.log.first("submission_benchmark")) return;  // other benchmarks use other keys
  const auto& known = known_keys();
  for (const auto& [key, records] : run.log.records) {
    if (std::ranges::find(known, key) != known.end()) continue;
    if (const std::string_view near = nearest(key, known, 2); !near.empty())
      report(notice, {run.at(&records[0])}, "found the unknown key {}: did you mean {}?", quote(key), near);
  }
}

void placeholders(const Run& run, const Report& report) {
  constexpr std::string_view kParts[] = {"placeholder", "not-a-result", "not_a_result", "changeme", "your_", "xxx"};
  constexpr std::string_view kWholes[] = {"org", "submitter", "reference", "unknown", "none", "test", "todo", "n/a"};
  for (const char* key : {"submission_org", "submission_platform"}) {
    std::string name = run.log.text(key);
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (std::ranges::any_of(kParts, [&](std::string_view part) { return name.find(part) != name.npos; }) ||
        std::ranges::find(kWholes, name) != std::end(kWholes))
      report(notice, {run.at(key)}, "{}: found {}, expected a name, not a placeholder", key, quote(run.log.text(key)));
  }
}

void precision(const Run& run, const Report& report) {
  const auto& known = precisions();
  for (const char* part : {"linear", "attn", "comm"}) {
    const std::string key = std::string("lowest_numerical_precision_in_") + part, word = run.log.text(key);
    if (!run.log.first(key) || std::ranges::find(known, word) != known.end()) continue;
    const std::string_view near = word.starts_with("bf") ? "bfloat16" : nearest(word, known, 2);
    report(run.round >= "6.0" ? error : notice, {run.at(key)}, "{}: found {}, expected {}", key, quote(word),
           near.empty() ? "a format of the rules" : near);
  }
}

// ---- time

void times(const Run& run, const Report& report) {
  if (const auto& back = run.log.back)
    report(error, {run.at(&back->first), run.at(&back->second)},
           "times run back by {} ms, expected that from run_start on they do not",
           shown(back->first.time_ms - back->second.time_ms));
}

void init_time(const Run& run, const Report& report) {
  const Record* start = run.log.first("run_start");
  const auto& inits = run.log.all("init_start");
  if (!start || inits.empty()) return;
  const Record& init = *std::ranges::min_element(inits, {}, &Record::time_ms);
  if (const double minutes = (start->time_ms - init.time_ms) / 60'000; minutes > run.benchmark->init_minutes)
    report(error, {run.at(&init), run.at(start)},
           "found {:.1f} minutes from init_start to run_start, expected at most {}", minutes,
           run.benchmark->init_minutes);
}

void untimed_gap(const Run& run, const Report& report) {
  const Record *stop = run.log.first("init_stop"), *start = run.log.first("run_start");
  if (stop && start && start->time_ms - stop->time_ms > 1000)
    report(notice, {run.at(stop), run.at(start)}, "found {} ms between init_stop and run_start, expected a few",
           shown(start->time_ms - stop->time_ms));
}

void stop(const Run& run, const Report& report) {
  const Evaluation* hit = run.reached();
  const Record* end = run.log.first("run_stop") ? &run.log.all("run_stop").back() : nullptr;
  const double target = run.benchmark->target;
  if (!hit && run.status == "success")
    report(error, {run.at(end)}, "found status success, expected an evaluation of at most {}", target);
  else if (hit && hit != &run.evaluations.back())
    report(error, {run.at(hit->record), run.at(hit[1].record)},
           "found an evaluation after the one that reached {}, expected the end of the run", target);
  else if (hit && end && end->time_ms - hit->record->time_ms > 30'000)
    report(error, {run.at(hit->record), run.at(end)},
           "found run_stop {:.0f} s after the evaluation that reached {}, expected it within seconds",
           (end->time_ms - hit->record->time_ms) / 1000, target);
}

// Times training from the last line before an evaluation that marks training as running to the next line that marks it
// as paused. The stretch before the first evaluation is excluded because it starts slowly.
void throughput(const Run& run, const Report& report) {
  using Events = std::map<int64_t, double>;  // time_ms by line
  Events begins, ends;
  const auto collect = [&](Events& events, std::initializer_list<const char*> keys) {
    for (const char* key : keys)
      for (const Record& record : run.log.all(key)) events[record.line] = record.time_ms;
  };
  collect(begins, {"eval_accuracy", "eval_stop", "block_start"});
  collect(ends, {"eval_accuracy", "eval_start", "block_stop"});
  std::vector<double> times;  // ms per sequence
  for (size_t i = 1; i < run.evaluations.size(); ++i) {
    const auto& [position, value, record] = run.evaluations[i];
    const auto [line, from] = *std::prev(begins.lower_bound(record->line));
    times.push_back((ends.upper_bound(line)->second - from) / (position - run.evaluations[i - 1].position));
  }
  if (times.size() < 3 || std::ranges::any_of(times, [](double t) { return !std::isfinite(t); })) return;
  const auto slowest = std::ranges::max_element(times);
  if (const double excess = *slowest / median(times) - 1; excess > 0.25)
    report(notice, {run.at(run.evaluations[static_cast<size_t>(slowest - times.begin()) + 1].record)},
           "found training before this evaluation {:.0f} % slower than the run's median, expected at most 25 %",
           100 * excess);
}

// ---- evaluations

void cadence(const Run& run, const Report& report) {
  const auto interval = static_cast<double>(run.benchmark->interval(run.batch));
  const auto wrong = std::ranges::adjacent_find(
      run.evaluations, [&](const Evaluation& a, const Evaluation& b) { return b.position - a.position != interval; });
  if (wrong != run.evaluations.end())
    report(error, {run.at(wrong->record), run.at(wrong[1].record)},
           "found {} sequences from one evaluation to the next, expected {}: {} rounded up to batches of {}",
           shown(wrong[1].position - wrong->position), shown(interval), grouped(run.benchmark->cadence),
           grouped(run.batch));
}

void first_evaluation(const Run& run, const Report& report) {
  if (run.evaluations.empty()) return;
  const auto interval = static_cast<double>(run.benchmark->interval(run.batch)), batch = static_cast<double>(run.batch);
  const auto& [position, value, record] = run.evaluations.front();
  const bool early = !whole(position / interval) && whole((position + batch) / interval);
  const double number = (position + (early ? batch : 0)) / interval;
  const int64_t skipped = run.benchmark->skipped_evaluations ? run.benchmark->skipped_evaluations(run.batch) : 0;
  if (!whole(number) || number < 1 || number > static_cast<double>(skipped + 1))
    report(error, {run.at(record)},
           "found the first evaluation at {} sequences, expected a multiple of {}, at most {} of them", shown(position),
           shown(interval), skipped + 1);
  else if (early)
    report(notice, {run.at(record)}, "found the first evaluation at {} sequences, a batch less than the expected {}",
           shown(position), shown(position + batch));
}

void evaluation_count(const Run& run, const Report& report) {
  const auto &starts = run.log.all("eval_start"), &values = run.log.all("eval_accuracy");
  const bool interrupted = run.status != "success" && starts.size() == values.size() + 1;
  if (!starts.empty() && starts.size() != values.size() && !interrupted)
    report(notice, {run.at(&starts.back()), values.empty() ? Evidence{} : run.at(&values.back())},
           "found {} eval_start and {} eval_accuracy, expected as many", starts.size(), values.size());
}

void train_samples(const Run& run, const Report& report) {
  const auto samples = run.log.number("train_samples");
  if (!run.benchmark->counts_tokens || !samples || !run.reached() || run.status != "success") return;
  const double last = run.evaluations.back().position,
               tokens = last * static_cast<double>(run.benchmark->sequence_length);
  if (*samples != last && *samples != tokens)
    report(error, {run.at("train_samples"), run.at(run.evaluations.back().record)},
           "train_samples: found {}, expected what the last evaluation had seen, {}", shown(*samples), shown(tokens));
}

// ---- hyperparameters

void batch_size(const Run& run, const Report& report) {
  const Benchmark& b = *run.benchmark;
  if (run.batch < b.least_batch || run.batch > b.most_batch)
    report(notice, {run.at("global_batch_size")},
           "global_batch_size: found {}, which needs its own reference points, expected {} to {}", grouped(run.batch),
           grouped(b.least_batch), grouped(b.most_batch));
}

void constants(const Run& run, const Report& report) {
  for (const auto& [key, allowed] : run.benchmark->constants) {
    const Record* record = run.log.first(key);
    if (!record || std::ranges::find(allowed, record->value) != allowed.end()) continue;
    std::vector<std::string> words;
    for (const nlohmann::json& value : allowed) words.push_back(value.dump());
    report(error, {run.at(record)}, "{}: found {}, expected {}", key, record->value.dump(), fmt::join(words, " or "));
  }
}

void base_rate(const Run& run, const Report& report) {
  const auto rate = run.log.number("opt_base_learning_rate");
  if (!rate || !run.benchmark->base_rates) return;
  const std::vector<double> rates = run.benchmark->base_rates(run.batch);
  const bool scaled = run.benchmark->scaled_rate;  // the rules round the rate to eight decimals
  const auto near = [&](double x) { return std::fabs(*rate - x) <= std::max(scaled ? 0.5000001e-8 : 0, 1e-9 * x); };
  const std::vector<Evidence> lines = {run.at("opt_base_learning_rate"), run.at("global_batch_size")};
  if (std::ranges::none_of(rates, near))
    report(error, lines, "opt_base_learning_rate: found {}, expected {:.8g}", *rate, fmt::join(rates, " or "));
  else if (scaled && *rate * 1152 != static_cast<double>(run.batch) * 8e-5)
    report(notice, lines,
           "opt_base_learning_rate: found {}, as the rules round it; the checker expects value * 1152 == {} * 8e-5",
           *rate, run.batch);
}

void end_rate(const Run& run, const Report& report) {
  const auto base = run.log.number("opt_base_learning_rate"), end = run.log.number("opt_end_learning_rate");
  if (!base || !end || close(*end, run.benchmark->end_rate(*base))) return;
  const bool ratio = close(*end * *base, run.benchmark->end_rate(*base));
  report(ratio ? notice : error, {run.at("opt_base_learning_rate"), run.at("opt_end_learning_rate")},
         "opt_end_learning_rate: found {}{}, expected {:.8g}", *end, ratio ? ", a ratio" : "",
         run.benchmark->end_rate(*base));
}

// Expects the formula's steps, rounded either way. Off by at most 2, or without the warm-up: a notice, unless exact.
void schedule_steps(const Run& run, const Report& report) {
  const double warmup = run.log.number("opt_learning_rate_warmup_steps").value_or(0);
  for (const auto& [key, formula, logged, exact_only] : run.benchmark->steps) {
    if (!logged) continue;
    const auto found = run.log.number(key);
    const double exact = formula(run.batch, warmup);
    if (!found || *found == std::floor(exact) || *found == std::ceil(exact)) continue;
    const bool near = !exact_only && (std::fabs(*found - exact) <= 2 || std::fabs(*found + warmup - exact) <= 2);
    report(near ? notice : error, {run.at(key), run.at("opt_learning_rate_warmup_steps"), run.at("global_batch_size")},
           "{}: found {}, expected {}", key, shown(*found), shown(std::ceil(exact)));
  }
}

// ---- layout

constexpr const char* kParallel[] = {"tensor_parallelism", "pipeline_parallelism", "context_parallelism"};

// Ranks that share a sample; empty: not all sizes are logged.
std::optional<double> ranks_of_a_sample(const Run& run) {
  double ranks = 1;
  for (const char* key : kParallel) {
    const auto size = run.log.number(key);
    if (!size) return {};
    ranks *= *size;
  }
  return ranks;
}

void accumulation(const Run& run, const Report& report) {
  const auto steps = run.log.number("gradient_accumulation_steps"), micro = run.log.number("micro_batch_size");
  if (!steps) return;
  const auto batch = static_cast<double>(run.batch);
  const double sequences = *steps * micro.value_or(1);  // per data-parallel rank
  const auto ranks = ranks_of_a_sample(run);
  const std::vector<Evidence> lines = {run.at("global_batch_size"), run.at("gradient_accumulation_steps"),
                                       run.at("micro_batch_size")};
  if (!(*steps >= 1) || !whole(*steps) || !whole(batch / sequences))
    report(error, lines, "found {} sequences of a rank in {} accumulation steps, expected a divisor of the batch, {}",
           shown(sequences), shown(*steps), grouped(run.batch));
  else if (micro && ranks && run.accelerators && sequences * static_cast<double>(*run.accelerators) != batch * *ranks)
    report(error, lines,
           "found {} accumulation steps of {} sequences on {} accelerators, {} to a sample, expected {} steps",
           shown(*steps), shown(*micro), grouped(*run.accelerators), shown(*ranks),
           shown(batch * *ranks / *micro / static_cast<double>(*run.accelerators)));
}

void parallelism(const Run& run, const Report& report) {
  const auto ranks = ranks_of_a_sample(run);
  if (ranks && run.accelerators && !whole(static_cast<double>(*run.accelerators) / *ranks))
    report(error, {run.at(kParallel[0]), run.at(kParallel[1]), run.at(kParallel[2])},
           "found parallel sizes of {} together, expected a divisor of the system's {} accelerators", shown(*ranks),
           grouped(*run.accelerators));
}

void framework(const Run& run, const Report& report) {
  const auto contradict = [&](const std::string& key, const std::vector<Printed>& lines) {
    const auto value = run.log.number(key);
    const auto same = [&](const Printed& line) { return static_cast<double>(line.value) == *value; };
    if (value && !lines.empty() && std::ranges::none_of(lines, same))
      report(error, {run.at(key), {run.log.path, lines[0].line, lines[0].text}},
             "{}: found {}, expected {}, as the framework printed", key, shown(*value), grouped(lines[0].value));
  };
  contradict("gradient_accumulation_steps", run.log.micro_batches);
  for (const auto& [key, line] : run.log.arguments) contradict(key, {line});
}

}  // namespace

const std::vector<RunRule>& run_rules() {
  constexpr std::string_view kLog = "Benchmark Results", kRun = "Run Results", kQuality = "Quality measure",
                             kHyper = "Hyperparameters";
  using enum Scope;
  static const std::vector<RunRule> rules = {
      {broken_lines, any, {"log-line", error, kLog, "lines with :::MLLOG are records"}},
      {subject, any, {"subject", cannot_know, "Benchmarks", "benchmark and batch size are known"}},
      {misspelt_keys, any, {"misspelt-key", notice, kLog, "no unknown key resembles a known one"}},
      {placeholders, any, {"placeholder", notice, kLog, "organisation and platform are not placeholders"}},
      {precision, any, {"precision", error, "Numerical formats", "precision keys name formats of the rules"}},
      {times, known, {"times", error, kRun, "from run_start on, times never decrease"}},
      {untimed_gap, known, {"untimed-gap", notice, kRun, "run_start follows init_stop within a second"}},
      {init_time, closed, {"init-time", error, kRun, "init_start to run_start: 30 minutes (GPT-3 in 3.0: 60)"}},
      {stop, closed, {"stop", error, kRun, "the run stops within 30 s of the first evaluation on target"}},
      {throughput, known, {"throughput", notice, kRun, "no stretch of training is 25 % slower than the median"}},
      {cadence, closed, {"cadence", error, kQuality, "evaluations are as far apart as the rules require"}},
      {first_evaluation,
       closed,
       {"first-evaluation", error, kQuality, "only the evaluations that may be skipped at the start are skipped"}},
      {evaluation_count, known, {"evaluations", notice, kQuality, "as many eval_start as eval_accuracy"}},
      {train_samples,
       closed,
       {"train-samples", error, kQuality, "GPT-3: train_samples is where the last evaluation was"}},
      {batch_size, closed, {"batch-size", notice, kHyper, "the batch size has reference points"}},
      {constants, closed, {"constants", error, kHyper, "optimizer, clipping, sequence length, eval_samples"}},
      {base_rate, closed, {"base-rate", error, kHyper, "learning rate for the batch size"}},
      {end_rate, closed, {"end-rate", error, kHyper, "learning rate at the end of the decay"}},
      {schedule_steps, closed, {"steps", error, kHyper, "warm-up, decay, first step for the batch size"}},
      {accumulation, known, {"accumulation", error, kHyper, "accumulation · micro-batch · data parallel = batch"}},
      {parallelism, known, {"parallelism", error, kHyper, "the product of parallel sizes divides the accelerators"}},
      {framework, known, {"framework", error, kHyper, "Megatron-LM or NeMo printed the same"}},
  };
  return rules;
}

}  // namespace trivet::mlperf
