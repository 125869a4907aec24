// The linter: silent on correct logs of every benchmark and round, and each rule finds its mutants.
#include "tools/mlperf/lint.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>
#include <set>
#include <sys/wait.h>

#include "base/json.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_dir.h"
#include "tests/support/where.h"
#include "tests/tools/mlperf/synthetic_log.h"
#include "tools/mlperf/rules.h"

namespace trivet::mlperf {
namespace {

namespace fs = std::filesystem;

Lint lint_text(const std::string& text, const std::string& round) {
  const TempDir dir;
  write_text(dir / "result_0.txt", text);
  return lint({dir / "result_0.txt"}, round);
}

// The findings about the log, except those on matters that no log can show.
std::vector<Finding> found(const Lint& lint) {
  std::vector<Finding> findings = lint.findings;
  std::erase_if(findings, [](const Finding& f) { return f.level == Level::cannot_know && f.rule != "subject"; });
  return findings;
}
std::string texts(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& f : findings) text += fmt::format("{} {}: {}\n", word_of(f.level), f.rule, f.message);
  return text;
}
bool has(const Lint& lint, std::string_view rule) {
  const auto about = [&](const Finding& f) { return f.rule == rule; };
  return std::ranges::any_of(lint.findings, about);
}

struct Case {
  const char *benchmark, *round;
  int64_t batch, evaluations;
};
constexpr Case kCases[] = {
    {"gpt3", "3.0", 1536, 25},         {"gpt3", "3.0", 2904, 25},         {"gpt3", "3.1", 3072, 26},
    {"gpt3", "3.1", 3600, 26},         {"gpt3", "4.0", 4096, 27},         {"gpt3", "4.0", 2048, 25},
    {"gpt3", "4.1", 8192, 35},         {"gpt3", "4.1", 6144, 30},         {"llama31_405b", "5.0", 1152, 9},
    {"llama31_405b", "5.0", 2304, 9},  {"llama31_405b", "5.1", 1152, 19}, {"llama31_405b", "5.1", 1536, 22},
    {"llama31_405b", "5.1", 4608, 29}, {"llama31_405b", "6.0", 2304, 23}, {"llama31_405b", "6.0", 1216, 22},
    {"llama31_405b", "6.0", 2016, 23}, {"llama31_405b", "5.1", 3456, 26}, {"llama31_8b", "5.1", 16, 14},
    {"llama31_8b", "5.1", 96, 24},     {"llama31_8b", "6.0", 32, 16},     {"llama31_8b", "6.0", 128, 34},
    {"llama31_8b", "6.1", 64, 20},     {"llama31_8b", "6.1", 40, 20},
};
constexpr LogStyle kStyles[] = {
    {},
    {.epochs = false},
    {.blocks = false},
    {.one_block = true},
    {.block_lengths = true},
    {.epochs = false, .eval_intervals = false},
    {.late_train_samples = true},
    {.tokens_in_eval_samples = true},
    {.skips = true},
    {.many_ranks = true},
    {.noisy = true},
    {.aborted = true},
    {.epochs = false,
     .block_lengths = true,
     .late_train_samples = true,
     .skips = true,
     .many_ranks = true,
     .noisy = true},
};

TEST(MlperfLint, FindsNothingInCorrectLogs) {
  int logs = 0;
  for (const auto& [benchmark, round, batch, evaluations] : kCases)
    for (const LogStyle& style : kStyles) {
      const std::string text = make_log(benchmark, round, batch, evaluations, style).text();
      if (const char* folder = std::getenv("TRIVET_MLPERF_LOGS"))  // for tests/mlperf/check.sh
        write_text(fmt::format("{}/{}-{}-{}{}.txt", folder, benchmark, round, logs, style.aborted ? "-aborted" : ""),
                   text);
      const Lint lint = lint_text(text, round);
      EXPECT_EQ(texts(found(lint)), "") << benchmark << ' ' << round << ' ' << batch;
      EXPECT_EQ(lint.files, 1);
      ++logs;
    }
  std::printf("%d correct logs without a finding\n", logs);
}

TEST(MlperfLint, SaysOnceWhatItCannotKnow) {
  const TempDir dir;
  write_text(dir / "a.txt", make_log("llama31_8b", "6.1", 32, 16).text());
  write_text(dir / "b.txt", make_log("gpt3", "4.1", 2048, 25).text());
  // when
  const Lint lint = mlperf::lint({dir / "a.txt", dir / "b.txt"}, "");
  // then: each rule is reported once, and the finding about rounds names every benchmark's last round
  std::set<std::string_view> rules;
  for (const Finding& f : lint.findings) EXPECT_TRUE(rules.insert(f.rule).second) << f.rule;
  EXPECT_TRUE(rules.contains("logged-values") && rules.contains("data-before-start"));
  EXPECT_NE(texts(lint.findings).find("gpt3 of 4.1, llama31_8b of 6.1"), std::string::npos);
  EXPECT_EQ(lint.count(Level::error) + lint.count(Level::notice), 0);
}

// ---- mutants

struct Mutant {
  const char* rule;
  Level level;
  Case of;
  std::function<void(SyntheticLog&)> mutate;
  LogStyle style = {};
};

constexpr Case kGpt3 = {"gpt3", "4.1", 2048, 25}, kLarge = {"llama31_405b", "5.1", 1536, 22},
               kSmall = {"llama31_8b", "6.1", 32, 16}, kSmall51 = {"llama31_8b", "5.1", 32, 16};

std::function<void(SyntheticLog&)> set(const char* key, const nlohmann::json& value) {
  return [=](SyntheticLog& log) { log.set(key, value); };
}
std::function<void(SyntheticLog&)> print(const char* text) {
  return [=](SyntheticLog& log) { log.print(text); };
}
void move_evaluations(SyntheticLog& log, int64_t samples) {
  for (Record* r : log.all("eval_accuracy"))
    r->metadata["samples_count"] = r->metadata["samples_count"].get<int64_t>() + samples;
}

std::vector<Mutant> mutants() {
  using enum Level;
  return {
      {"log-line", error, kSmall, print(":::MLLOG {\"namespace\": \"\", \"time_ms\": 17")},
      {"log-line", error, kSmall,
       print(":::MLLOG {\"time_ms\": \"soon\", \"key\": \"seed\", \"value\": 1, \"metadata\": {}}")},
      {"log-line", error, kSmall, [](SyntheticLog& log) { log.lines.clear(), log.print("Segmentation fault"); }},
      {"subject", cannot_know, kSmall, set("submission_benchmark", "llama31_9b")},
      {"subject", cannot_know, kSmall, set("global_batch_size", 0)},
      {"subject", cannot_know, kSmall, [](SyntheticLog& log) { log.erase("submission_benchmark"); }},
      {"misspelt-key", notice, kSmall, [](SyntheticLog& log) { log.add("opt_adamw_epsilom", 1e-5); }},
      {"misspelt-key", notice, kGpt3, [](SyntheticLog& log) { log.of("eval_samples").key = "eval_sample"; }},
      {"placeholder", notice, kSmall, set("submission_org", "SUBMISSION_ORG_PLACEHOLDER")},
      {"placeholder", notice, kSmall, set("submission_org", "TEST-NOT-A-RESULT")},
      {"placeholder", notice, kSmall, set("submission_platform", "Reference")},
      {"precision", error, kSmall, set("lowest_numerical_precision_in_attn", "bf16")},
      {"precision", notice, kSmall51,
       [](SyntheticLog& log) { log.add("lowest_numerical_precision_in_linear", "fp9"); }},
      {"times", error, kSmall, [](SyntheticLog& log) { log.all("eval_accuracy")[3]->time_ms -= 9e6; }},
      {"times", error, kGpt3, [](SyntheticLog& log) { log.of("run_stop").time_ms -= 20'000; }},
      {"untimed-gap", notice, kSmall, [](SyntheticLog& log) { log.delay("run_start", 5000); }},
      {"init-time", error, kSmall, [](SyntheticLog& log) { log.delay("init_stop", 1.8e6); }},
      {"init-time", error, {"gpt3", "3.0", 2048, 25}, [](SyntheticLog& log) { log.delay("init_stop", 3.6e6); }},
      {"stop", error, kSmall, [](SyntheticLog& log) { log.delay("run_stop", 60'000); }},
      {"stop", error, kSmall, [](SyntheticLog& log) { log.all("eval_accuracy")[9]->value = 3.2; }},
      {"stop", error, kSmall, [](SyntheticLog& log) { log.all("eval_accuracy").back()->value = 3.31; }},
      {"throughput", notice, kSmall,
       [](SyntheticLog& log) {
         const Record* slow = log.all("eval_accuracy")[6];
         for (SyntheticLine& line : log.lines)
           if (line.record.time_ms > slow->time_ms) line.record.time_ms += 60'000;
       }},
      {"cadence", error, kSmall,
       [](SyntheticLog& log) { log.all("eval_accuracy")[4]->metadata["samples_count"] = 61'000; }},
      {"cadence",
       error,
       {"llama31_405b", "5.0", 1536, 22},
       [](SyntheticLog& log) {  // the interval of 5.1
         int64_t position = 0;
         for (Record* r : log.all("eval_accuracy")) r->metadata["samples_count"] = position += 18'432;
       }},
      {"cadence", error, kGpt3,
       [](SyntheticLog& log) { log.erase("eval_accuracy"), log.all("eval_accuracy")[3]->metadata["epoch_num"] = 1; }},
      {"first-evaluation", error, kSmall, [](SyntheticLog& log) { move_evaluations(log, 12'288); }},
      {"first-evaluation", error, kSmall, [](SyntheticLog& log) { move_evaluations(log, -100); }},
      {"first-evaluation", error, kLarge, [](SyntheticLog& log) { move_evaluations(log, 18'432); }, {.skips = true}},
      {"first-evaluation", notice, kSmall, [](SyntheticLog& log) { move_evaluations(log, -32); }},
      {"evaluations", notice, kSmall, [](SyntheticLog& log) { log.erase("eval_accuracy"); }},
      {"evaluations", notice, kGpt3, [](SyntheticLog& log) { log.erase("eval_start"); }},
      {"train-samples", error, kGpt3, set("train_samples", 1'157'627'904 + 2048)},
      {"batch-size", notice, {"gpt3", "4.1", 1024, 25}, [](SyntheticLog&) {}},
      {"batch-size", notice, {"llama31_405b", "6.0", 1024, 22}, [](SyntheticLog&) {}},
      {"batch-size", notice, {"llama31_405b", "6.0", 18'432, 40}, [](SyntheticLog&) {}},
      {"constants", error, kGpt3, set("opt_weight_decay", 0.01)},
      {"constants", error, kGpt3, set("eval_samples", 24'576)},
      {"constants", error, kSmall, set("opt_name", "adam")},
      {"constants", error, kLarge, set("opt_adamw_epsilon", 1e-8)},
      {"constants", error, kLarge, set("max_sequence_length", 4096)},
      {"constants", error, kLarge, set("opt_gradient_clip_norm", "1.0")},
      {"base-rate", error, kGpt3, set("opt_base_learning_rate", 3e-5)},
      {"base-rate", error, {"gpt3", "4.1", 4096, 27}, set("opt_base_learning_rate", 2e-5)},
      {"base-rate", error, kLarge, set("opt_base_learning_rate", 8e-5)},
      {"base-rate", notice, kLarge, set("opt_base_learning_rate", 0.00010667)},
      {"end-rate", error, kGpt3, set("opt_end_learning_rate", 2e-5)},
      {"end-rate", notice, kGpt3, set("opt_end_learning_rate", 0.1)},
      {"end-rate", error, kLarge, set("opt_end_learning_rate", 8e-6)},
      {"end-rate", error, kSmall, set("opt_end_learning_rate", 0.0)},
      {"steps", error, kGpt3, set("opt_learning_rate_warmup_steps", 265)},
      {"steps", notice, kLarge, set("opt_learning_rate_warmup_steps", 6000.5)},
      {"steps", error, kLarge, set("opt_learning_rate_warmup_steps", 8000)},
      {"steps", error, kLarge, set("opt_learning_rate_decay_steps", 1'192'000)},
      {"steps", notice, kGpt3, set("opt_learning_rate_decay_steps", 81'251)},
      {"steps", error, {"llama31_405b", "6.0", 2016, 22}, set("opt_learning_rate_decay_steps", 681'144)},
      {"steps", error, {"llama31_405b", "5.1", 3456, 25}, set("opt_learning_rate_decay_steps", 397'334)},
      {"steps", error, {"llama31_405b", "5.1", 3456, 25}, set("opt_learning_rate_decay_steps", 397'333.3)},
      {"steps", error, {"llama31_405b", "6.0", 1008, 22}, set("opt_learning_rate_decay_steps", 1'362'287)},
      {"steps", error, kSmall, set("opt_learning_rate_decay_steps", 1'200'000 - 100)},
      {"steps", error, kGpt3, set("init_checkpoint_step", 4000)},
      {"accumulation", error, kGpt3, set("gradient_accumulation_steps", 3)},
      {"accumulation", error, kSmall, set("gradient_accumulation_steps", 1.5)},
      {"accumulation", error, kSmall, set("micro_batch_size", 5)},
      {"framework", error, kSmall, print("[NeMo I 2025] setting number of microbatches to constant 4")},
      {"framework", error, kSmall, print("0:   tensor_model_parallel_size ...................... 2")},
  };
}

// mutants of results, with the folders around them
struct ResultMutant {
  const char* rule;
  Level level;
  std::function<void(std::vector<SyntheticLog>&)> mutate;
  const char* nodes = "1";
};

// ORG/systems/SYSTEM.json and ORG/results/SYSTEM/llama31_8b/result_N.txt, ten runs at batch 32, where the reference
// takes 14 to 16 evaluations.
Lint lint_result(const TempDir& dir, const ResultMutant& mutant) {
  std::vector<SyntheticLog> logs;
  for (int i = 0; i < 10; ++i) logs.push_back(make_log("llama31_8b", "6.1", 32, 15 + i % 2, {}, i));
  mutant.mutate(logs);
  const std::string folder = dir / "org/results/box/llama31_8b";
  fs::create_directories(folder), fs::create_directories(dir / "org/systems");
  write_text(dir / "org/systems/box.json",
             fmt::format(R"({{"number_of_nodes": "{}", "accelerators_per_node": "4"}})", mutant.nodes));
  for (size_t i = 0; i < logs.size(); ++i) write_text(fmt::format("{}/result_{}.txt", folder, i), logs[i].text());
  write_text(folder + "/notes.txt", ":::MLLOG no log");
  return lint({dir / "org"}, "6.1");
}

std::vector<ResultMutant> result_mutants() {
  using enum Level;
  using Logs = std::vector<SyntheticLog>;
  return {
      {"seeds", error, [](Logs& logs) { logs[3].set("seed", 1007); }},
      {"seeds", error, [](Logs& logs) { logs[3].erase("seed"); }},
      {"convergence", error,
       [](Logs& logs) {
         for (int i = 0; i < 10; ++i) logs[static_cast<size_t>(i)] = make_log("llama31_8b", "6.1", 32, 14, {}, i);
       }},
      {"convergence", error,
       [](Logs& logs) {
         for (size_t i : {1, 2})
           logs[i] = make_log("llama31_8b", "6.1", 32, 20, {.aborted = true}, static_cast<int>(i));
       }},
      {"convergence", error, [](Logs& logs) { logs[5] = make_log("llama31_8b", "6.1", 64, 15, {}, 5); }},
      {"convergence", notice,
       [](Logs& logs) {
         for (size_t i = 0; i < 10; ++i) logs[i] = make_log("llama31_8b", "6.1", 256, 15, {}, static_cast<int>(i));
       }},
      {"convergence", notice,
       [](Logs& logs) {
         for (size_t i = 0; i < 6; ++i) logs[i] = make_log("llama31_8b", "6.1", 32, 14, {}, static_cast<int>(i));
       }},
      {"convergence", cannot_know, [](Logs& logs) { logs.resize(2); }},
      {"copied-run", notice, [](Logs& logs) { logs[4] = logs[6]; }},
      {"accumulation", error, [](Logs& logs) { logs[0].set("tensor_parallelism", 2); }},
      {"accumulation", error, [](Logs&) {}, "3"},
      {"parallelism", error, [](Logs& logs) { logs[0].set("pipeline_parallelism", 3); }},
  };
}

TEST(MlperfLint, FindsEveryMutant) {
  int killed = 0, all = 0;
  std::set<std::string_view> covered;
  const auto count = [&](const Lint& lint, const char* rule, Level level) {
    const auto is_it = [&](const Finding& f) { return f.rule == rule && f.level == level; };
    const bool is_found = std::ranges::any_of(lint.findings, is_it);
    EXPECT_TRUE(is_found) << "mutant " << all << " of " << rule << ", found:\n" << texts(found(lint));
    const std::set<std::string_view> without_lines = {"log-line", "subject", "seeds", "convergence"};
    for (const Finding& f : lint.findings)
      EXPECT_TRUE(!is_it(f) || !f.lines.empty() || without_lines.contains(f.rule)) << f.message;
    ++all, killed += is_found;
    covered.insert(rule);
  };
  for (const Mutant& mutant : mutants()) {
    SyntheticLog log =
        make_log(mutant.of.benchmark, mutant.of.round, mutant.of.batch, mutant.of.evaluations, mutant.style);
    mutant.mutate(log);
    count(lint_text(log.text(), mutant.of.round), mutant.rule, mutant.level);
  }
  for (const ResultMutant& mutant : result_mutants()) {
    const TempDir dir;
    count(lint_result(dir, mutant), mutant.rule, mutant.level);
  }
  std::printf("mutation score: %d of %d\n", killed, all);
  // a mutant exists for every rule about a log
  for (const RuleText& rule : lint_rules()) {
    const bool is_about_logs = rule.level != Level::cannot_know || rule.id == "subject";
    EXPECT_EQ(covered.contains(rule.id), is_about_logs) << rule.id;
  }
}

// ---- results

TEST(MlperfLint, FindsNothingInACorrectResult) {
  const TempDir dir;
  const Lint lint = lint_result(dir, {"", Level::error, [](std::vector<SyntheticLog>&) {}});
  EXPECT_EQ(texts(found(lint)), "");
  EXPECT_EQ(lint.files, 10);
}

TEST(MlperfLint, TakesARunThatDidNotConvergeForTheSlowest) {
  const TempDir dir;
  const Lint lint = lint_result(dir, {"", Level::error, [](std::vector<SyntheticLog>& logs) {
                                        logs[2] = make_log("llama31_8b", "6.1", 32, 20, {.aborted = true}, 2);
                                      }});
  EXPECT_EQ(texts(found(lint)), "");
}

// ---- the convergence test: numbers from the official rcp_checker (mlperf_logging 4.1.68, pruned points)

TEST(MlperfRules, ReferenceConvergenceIsTheOfficialCheckers) {
  struct Expected {
    const char *benchmark, *round;
    int64_t batch;
    double mean, least;
  };
  const Expected numbers[] = {
      {"gpt3", "3.0", 1536, 577536.000, 545204.548},         {"gpt3", "4.1", 6144, 688128.000, 688128.000},
      {"llama31_405b", "5.0", 1152, 322560.000, 276480.000}, {"llama31_405b", "5.0", 5000, 501480.000, 394621.699},
      {"llama31_405b", "5.1", 1536, 331776.000, 262534.285}, {"llama31_8b", "5.1", 16, 161109.333, 157919.545},
      {"llama31_8b", "6.1", 96, 278640.000, 270339.659},     {"llama31_8b", "6.1", 40, 190805.333, 185075.983},
  };
  for (const auto& [name, round, batch, mean, least] : numbers) {
    const auto convergence = reference_convergence(*find_benchmark(name, round), batch);
    ASSERT_TRUE(convergence) << name << batch;
    EXPECT_NEAR(convergence->mean, mean, 0.01) << name << batch;
    EXPECT_NEAR(convergence->least, least, 0.01) << name << batch;
  }
  EXPECT_FALSE(reference_convergence(*find_benchmark("llama31_8b", "6.1"), 129));
  EXPECT_TRUE(reference_convergence(*find_benchmark("llama31_8b", "6.1"), 8)->below);
}

TEST(MlperfRules, ARoundHasItsBenchmarks) {
  EXPECT_EQ(find_benchmark("gpt3", "5.0"), nullptr);
  EXPECT_EQ(find_benchmark("llama31_405b", "6.1"), nullptr);
  EXPECT_EQ(find_benchmark("llama31_8b", "5.0"), nullptr);
  EXPECT_EQ(find_benchmark("llama31_405b", "5.0")->cadence, 46'080);
  EXPECT_EQ(find_benchmark("llama31_405b", "")->cadence, 18'432);
}

// ---- output and bad input

TEST(MlperfLint, ShowsTheLines) {
  const TempDir dir;
  SyntheticLog log = make_log("llama31_8b", "6.1", 32, 16);
  log.set("opt_adamw_beta_2", 0.99);
  write_text(dir / "log.txt", log.text());
  // when
  const nlohmann::json json = parse_json(to_json(lint({dir / "log.txt"}, "6.1")));
  // then
  EXPECT_EQ(json["files"], 1);
  EXPECT_EQ(json["errors"], 1);
  const nlohmann::json& finding = json["findings"][0];
  EXPECT_EQ(finding["level"], "error");
  EXPECT_EQ(finding["rule"], "constants");
  EXPECT_EQ(finding["section"], "Hyperparameters");
  EXPECT_EQ(finding["message"], "opt_adamw_beta_2: found 0.99, expected 0.95");
  EXPECT_EQ(finding["lines"][0]["file"], dir / "log.txt");
  EXPECT_EQ(finding["lines"][0]["line"], log.index("opt_adamw_beta_2") + 1);
}

TEST(MlperfLint, ReadsWhatTheOfficialReaderReads) {
  // given: a prefix that contains the token itself, Python's NaN, a byte that is not UTF-8, a line without a newline
  const TempDir dir;
  write_text(
      dir / "log.txt",
      ":::MLLOG :::MLLOG {\"time_ms\": 1, \"key\": \"eval_accuracy\", \"value\": NaN, \"metadata\": {}}\n"
      "0: :::MLLOG {\"time_ms\": 2.5, \"key\": \"a\", \"value\": \"\xe9 NaN\", \"metadata\": {\"b\": -Infinity}}\n"
      ":::MLLOG {\"time_ms\": 3, \"key\": \"run_stop\", \"value\": [1], \"metadata\": null}");
  // when
  const Log log = read_log(dir / "log.txt");
  // then
  EXPECT_TRUE(log.broken.empty());
  EXPECT_TRUE(log.first("eval_accuracy")->value.is_null());
  EXPECT_EQ(log.text("a"), "? NaN");
  EXPECT_EQ(log.first("a")->line, 2);
  EXPECT_TRUE(log.first("run_stop")->value.is_discarded());
}

TEST(MlperfLint, NothingCrashesIt) {
  const std::string deep = ":::MLLOG {\"time_ms\": 1, \"key\": \"seed\", \"metadata\": {}, \"value\": ";
  for (const std::string& text :
       {std::string(), std::string("\0\xff\n", 3), std::string(":::MLLOG "), std::string(":::MLLOG null\n"),
        deep + std::string(100'000, '[') + std::string(100'000, ']') + "}\n", deep + "1e999}\n"})
    EXPECT_GT(lint_text(text, "6.1").findings.size(), 0U);
  // a log whose numbers are strings and whose strings are numbers
  SyntheticLog log = make_log("llama31_8b", "6.1", 32, 16);
  for (SyntheticLine& line : log.lines)
    if (line.record.key != "submission_benchmark")
      line.record.value = line.record.value.is_string() ? nlohmann::json(7) : nlohmann::json("x");
  EXPECT_TRUE(has(lint_text(log.text(), "6.1"), "subject"));
}

TEST(MlperfLint, ItsPageHasTheRules) {
  std::string rows;
  for (const RuleText& rule : lint_rules())
    rows += fmt::format("| `{}` | {} | {} | {} |\n", rule.id, word_of(rule.level), rule.what, rule.section);
  EXPECT_NE(read_text(source_path("docs/mlperf.md")).find("|---|---|---|---|\n" + rows), std::string::npos) << rows;
}

TEST(MlperfProgram, EndsWith65WhereThereAreErrors) {
  const TempDir dir;
  SyntheticLog log = make_log("llama31_8b", "6.1", 32, 16);
  write_text(dir / "correct.txt", log.text());
  log.set("opt_adamw_beta_2", 0.99);
  write_text(dir / "wrong.txt", log.text());
  const auto exit_code = [&](const std::string& arguments) {
    const int status =
        std::system(fmt::format("{} mlperf lint {} >{} 2>&1", program_path(), arguments, dir / "out.txt").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(exit_code(dir / "correct.txt"), 0);
  EXPECT_NE(read_text(dir / "out.txt").find("1 log: 0 errors, 0 notices\n"), std::string::npos);
  EXPECT_EQ(exit_code(dir / "correct.txt" + " --json " + dir / "wrong.txt"), 65);
  EXPECT_EQ(parse_json(read_text(dir / "out.txt"))["files"], 2);
  EXPECT_EQ(exit_code(dir / "none.txt"), 64);
}

TEST(MlperfLint, JudgesNoOtherBenchmark) {
  // given: a result with keys, times and seeds that no language model's result may contain
  const TempDir dir;
  SyntheticLog log = make_log("llama31_8b", "6.1", 32, 16);
  log.set("submission_benchmark", "bert");
  log.add("opt_adam_beta_3", 0.1);
  log.of("run_stop").time_ms -= 1e6;
  for (const char* name : {"result_0.txt", "result_1.txt"}) write_text(dir / name, log.text());
  // then
  const std::vector<Finding> findings = found(lint({dir / "."}, ""));
  ASSERT_EQ(findings.size(), 2U) << texts(findings);
  for (const Finding& f : findings) EXPECT_EQ(f.rule, "subject");
}

TEST(MlperfLint, RefusesPathsWithoutLogs) {
  const TempDir dir;
  EXPECT_EQ(message_of([&] { lint({dir / "none"}, ""); }), dir / "none" + ": there is no such file or directory");
  EXPECT_EQ(message_of([&] { lint({dir / "."}, ""); }),
            dir / "." + ": found no file result_*.txt, expected the logs of runs, not links to them");
}

}  // namespace
}  // namespace trivet::mlperf
