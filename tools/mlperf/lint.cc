// Reads runs and results, applies the rules about whole results, and lists the facts that no log contains.
#include "tools/mlperf/lint.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/ranges.h>
#include <map>
#include <set>
#include <tuple>

#include "base/check.h"
#include "base/files.h"
#include "base/scalar.h"
#include "base/text.h"
#include "tools/mlperf/run.h"

namespace trivet::mlperf {
namespace {

namespace fs = std::filesystem;
using enum Level;

// ---- rules about whole results

// As in the official seed checker, two seeds count as equal only if the same source line logged them.
void check_seeds(const Result& result, const Report& report) {
  std::map<std::tuple<std::string, std::string, std::string>, std::pair<const Run*, const Record*>> taken;
  for (const Run& run : result.runs) {
    if (run.log.all("seed").empty()) report(error, {}, "{}: found no seed, expected one", run.log.path);
    for (const Record& seed : run.log.all("seed")) {
      const auto part = [&](const char* name) { return seed.metadata.value(name, nlohmann::json()).dump(); };
      const auto [first, is_new] =
          taken.try_emplace({part("file"), part("lineno"), seed.value.dump()}, std::pair{&run, &seed});
      if (const auto [other, record] = first->second; !is_new && other != &run)
        report(error, {other->at(record), run.at(&seed)}, "found the seed {} in two runs, expected different seeds",
               seed.value.dump());
    }
  }
}

void check_convergence(const Result& result, const Report& report) {
  const Run& first = result.runs[0];
  const auto same = [&](const Run& run) { return run.benchmark == first.benchmark && run.batch == first.batch; };
  if (first.batch == 0) return;
  if (!std::ranges::all_of(result.runs, same))
    return report(error, {}, "{}: found runs of several batch sizes or benchmarks, expected one", result.folder);
  std::vector<double> positions;
  std::vector<Evidence> ends;
  for (const Run& run : result.runs) {
    const bool converged = run.status == "success" && run.reached();
    positions.push_back(converged ? run.evaluations.back().position : INFINITY);
    ends.push_back(converged ? run.at(run.evaluations.back().record) : run.at("run_stop"));
  }
  if (const auto failed = std::ranges::count(positions, INFINITY); failed > 1)
    return report(error, ends, "{}: found {} runs that did not converge, expected at most one", result.folder, failed);
  if (positions.size() < 3)
    return report(cannot_know, {}, "{}: found {} runs: convergence is judged over {}", result.folder, positions.size(),
                  first.benchmark->runs);
  const double mean = olympic_mean(positions);
  const auto reference = reference_convergence(*first.benchmark, first.batch);
  if (!reference || (reference->below && mean < reference->least))
    report(notice, ends, "{}: found batch {}, which needs its own reference points", result.folder,
           grouped(first.batch));
  else if (mean < reference->least)
    report(error, ends,
           "{}: found {} sequences to the target in the mean, faster than the reference, {}, and its leeway, "
           "expected at least {}",
           result.folder, grouped(std::llround(mean)), grouped(std::llround(reference->mean)),
           grouped(std::llround(reference->least)));
  else if (mean < reference->mean)
    report(notice, ends,
           "{}: found {} sequences to the target in the mean, the reference {}: the score is multiplied by "
           "{:.4f}",
           result.folder, grouped(std::llround(mean)), grouped(std::llround(reference->mean)), reference->mean / mean);
}

// Runs that share the same three or more evaluations are copies of one run, even if they belong to different results.
void check_copies(const std::vector<Result>& results, const Report& report) {
  constexpr size_t kFewest = 3;
  std::map<std::vector<double>, const Run*> seen;
  for (const Result& result : results)
    for (const Run& run : result.runs) {
      std::vector<double> values;
      for (const Evaluation& evaluation : run.evaluations) values.push_back(evaluation.value);
      if (values.size() < kFewest) continue;
      if (const auto [other, is_new] = seen.try_emplace(values, &run); !is_new)
        report(notice, {other->second->at(other->second->evaluations[0].record), run.at(run.evaluations[0].record)},
               "found the same {} evaluations in two logs, expected different runs", values.size());
    }
}

constexpr RuleText kSeeds = {"seeds", error, "Random numbers", "each run of a result logs a seed of its own"};
constexpr RuleText kConvergence = {"convergence", error, "Reference Convergence Points (RCPs)",
                                   "a result converges no faster than the reference"};
constexpr RuleText kCopies = {"copied-run", notice, "Scoring", "no two logs have the same evaluations"};

// Facts that no log can prove.
constexpr RuleText kUnknowable[] = {
    {"logged-values", cannot_know, "Hyperparameters", "whether the logged values are those that were used"},
    {"data-before-start", cannot_know, "Run Results", "whether data was touched before run_start"},
    {"evaluation-data", cannot_know, "Quality measure", "which sequences were evaluated, in which order"},
    {"start-weights", cannot_know, "Weight and Bias Initialization", "which weights the run began with"},
    {"other-runs", cannot_know, "Scoring", "whether runs were left out"},
};
constexpr RuleText kRound = {"round", cannot_know, "Benchmarks", "which round the log belongs to (--round names it)"};

// ---- reading

// The number of accelerators in ORG/systems/SYSTEM.json, for a log in ORG/results/SYSTEM/BENCHMARK/.
std::optional<int64_t> accelerators_of(const std::string& log) {
  const fs::path system = fs::absolute(log).lexically_normal().parent_path().parent_path();
  const fs::path path = system.parent_path().parent_path() / "systems" / (system.filename().string() + ".json");
  constexpr int64_t kMostBytes = 1 << 20;
  if (std::error_code none; !fs::is_regular_file(path, none)) return {};
  const nlohmann::json json = parse_json(read_small_file(path, kMostBytes), BadJson::discarded);
  const auto count = [&](const char* key) -> int64_t {
    const auto at = json.find(key);
    const auto value = at == json.end() || !at->is_string() ? std::nullopt : parse_integer(at->get<std::string>());
    return value && *value > 0 && *value < INT32_MAX ? *value : 0;
  };
  const int64_t all = json.is_object() ? count("number_of_nodes") * count("accelerators_per_node") : 0;
  return all > 0 ? std::optional(all) : std::nullopt;
}

Run read_run(const std::string& path, std::string_view round) {
  Run run{.log = read_log(path)};
  run.benchmark = find_benchmark(run.log.text("submission_benchmark"), round);
  run.round = !round.empty() || !run.benchmark ? round : run.benchmark->last;
  run.accelerators = accelerators_of(path);
  if (!run.log.all("run_stop").empty()) {
    const nlohmann::json& metadata = run.log.all("run_stop").back().metadata;
    if (const auto at = metadata.find("status"); at != metadata.end() && at->is_string()) run.status = *at;
  }
  const auto batch = run.log.number("global_batch_size");
  if (batch && *batch >= 1 && *batch <= 1e9 && *batch == std::floor(*batch)) run.batch = static_cast<int64_t>(*batch);
  if (!run.benchmark) return run;
  const bool tokens = run.benchmark->counts_tokens;
  for (const Record& record : run.log.all("eval_accuracy")) {
    const auto position = record.position(tokens ? "epoch_num" : "samples_count");
    if (!position || *position == 0 || !record.is_number()) continue;
    const double sequences = *position / (tokens ? static_cast<double>(run.benchmark->sequence_length) : 1.0);
    const auto& all = run.evaluations;
    if (all.empty() || all.back().position != sequences || all.back().value != record.number())
      run.evaluations.push_back({sequences, record.number(), &record});
  }
  return run;
}

std::vector<Result> read_results(const std::vector<std::string>& paths, std::string_view round) {
  std::map<std::string, std::set<std::string>> folders;
  std::vector<Result> results;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::exists(path, error)) throw ConfigError(path + ": there is no such file or directory");
    if (!fs::is_directory(path)) {
      results.push_back({path});
      results.back().runs.push_back(read_run(path, round));
      continue;
    }
    bool found = false;
    const auto skip = fs::directory_options::skip_permission_denied;
    for (fs::recursive_directory_iterator at(path, skip, error), end; !error && at != end; at.increment(error))
      if (const std::string name = at->path().filename();
          name.starts_with("result_") && name.ends_with(".txt") && !at->is_symlink(error))
        found = true, folders[at->path().parent_path()].insert(at->path());
    if (error) throw IoError(path + ": cannot be listed: " + error.message());
    if (!found) throw ConfigError(path + ": found no file result_*.txt, expected the logs of runs, not links to them");
  }
  for (const auto& [folder, files] : folders) {
    results.push_back({folder, true});
    for (const std::string& file : files) results.back().runs.push_back(read_run(file, round));
  }
  return results;
}

}  // namespace

const Evaluation* Run::reached() const {
  const auto at = std::ranges::find_if(evaluations, [&](const Evaluation& e) { return e.value <= benchmark->target; });
  return at == evaluations.end() ? nullptr : &*at;
}

Evidence Run::at(const Record* record) const {
  if (!record) return {};
  std::string text = record->key + " " + shortened(record->value.is_discarded() ? "{…}" : record->value.dump(), 60);
  for (const char* name : {"samples_count", "epoch_num", "status"})
    if (const auto found = record->metadata.find(name); found != record->metadata.end())
      text += fmt::format(", {} {}", name, found->dump());
  return {log.path, record->line, fmt::format("{}, time_ms {:.0f}", text, record->time_ms)};
}

std::vector<RuleText> lint_rules() {
  std::vector<RuleText> rules;
  for (const RunRule& rule : run_rules()) rules.push_back(rule.text);
  rules.insert(rules.end(), {kSeeds, kConvergence, kCopies, kRound});
  rules.insert(rules.end(), std::begin(kUnknowable), std::end(kUnknowable));
  return rules;
}

int64_t Lint::count(Level level) const { return std::ranges::count(findings, level, &Finding::level); }

Lint lint(const std::vector<std::string>& paths, const std::string& round) {
  Lint lint;
  const std::vector<Result> results = read_results(paths, round);
  std::set<std::string> assumed;
  for (const Result& result : results) {
    for (const Run& run : result.runs) {
      ++lint.files;
      const Scope scope = !run.benchmark || run.batch == 0                ? Scope::any
                          : run.log.text("submission_division") == "open" ? Scope::known
                                                                          : Scope::closed;
      if (run.benchmark && round.empty()) assumed.insert(fmt::format("{} of {}", run.benchmark->name, run.round));
      for (const RunRule& rule : run_rules())
        if (rule.scope <= scope) rule.check(run, Report(rule.text, lint.findings));
    }
    if (!result.whole || !result.runs[0].benchmark) continue;
    check_seeds(result, Report(kSeeds, lint.findings));
    check_convergence(result, Report(kConvergence, lint.findings));
  }
  check_copies(results, Report(kCopies, lint.findings));
  if (!assumed.empty())
    Report(kRound, lint.findings)(cannot_know, {}, "{}: the rules are those for {}", kRound.what,
                                  fmt::join(assumed, ", "));
  for (const RuleText& rule : kUnknowable) Report(rule, lint.findings)(cannot_know, {}, "{}", rule.what);
  std::ranges::stable_sort(lint.findings, {}, &Finding::level);
  return lint;
}

std::string to_json(const Lint& lint) {
  nlohmann::ordered_json json = {{"files", lint.files}, {"errors", lint.count(error)}, {"notices", lint.count(notice)}};
  json["findings"] = nlohmann::ordered_json::array();
  for (const Finding& finding : lint.findings) {
    nlohmann::ordered_json lines = nlohmann::ordered_json::array();
    for (const auto& [file, line, text] : finding.lines)
      lines.push_back({{"file", file}, {"line", line}, {"text", text}});
    json["findings"].push_back({{"level", word_of(finding.level)},
                                {"rule", finding.rule},
                                {"section", finding.section},
                                {"message", finding.message},
                                {"lines", lines}});
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

}  // namespace trivet::mlperf
