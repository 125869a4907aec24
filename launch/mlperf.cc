// trivet mlperf lint: runs the checks that the official checker of MLPerf logs omits; trivet mlperf summary: computes a
// result's score.
#include <algorithm>
#include <memory>

#include "base/files.h"
#include "base/utf8.h"
#include "launch/commands.h"
#include "tools/mlperf/lint.h"
#include "tools/mlperf/rules.h"
#include "tools/mlperf/summary.h"

namespace trivet {
namespace {

struct LintOptions {
  std::vector<std::string> paths;
  std::string round;
  bool json = false;
};

void print_findings(const mlperf::Lint& lint) {
  for (const mlperf::Finding& finding : lint.findings) {
    const std::string text =
        fmt::format("{}: {} [{}: {}]", word_of(finding.level), finding.message, finding.rule, finding.section);
    print_text(printable(text));
    for (const mlperf::Evidence& line : finding.lines)
      fmt::print("    {}\n", printable(fmt::format("{}:{}: {}", line.file, line.line, line.text)));
  }
  fmt::print("{}: {}, {}\n", counted(lint.files, "log"), counted(lint.count(mlperf::Level::error), "error"),
             counted(lint.count(mlperf::Level::notice), "notice"));
}

struct SummaryOptions {
  std::string folder, reference, picture, reference_to_write;
};

// The logs result_0.txt, result_1.txt … in the folder, in order.
std::vector<mlperf::RunResult> results_in(const std::string& folder) {
  std::vector<mlperf::RunResult> runs;
  for (int i = 0;; ++i) {
    const std::string file = fmt::format("{}/result_{}.txt", folder, i);
    if (!file_exists(file)) break;
    runs.push_back(mlperf::result_of(mlperf::read_log(file)));
    const mlperf::RunResult &run = runs.back(), &first = runs[0];
    if (run.benchmark != first.benchmark || run.batch != first.batch || run.target != first.target)
      throw DataError(
          fmt::format("{}: is a run of {} with batches of {} to {}, expected {} with {} to {} as in result_0.txt", file,
                      run.benchmark, run.batch, run.target, first.benchmark, first.batch, first.target));
  }
  if (runs.empty()) throw ConfigError(fmt::format("{}: found no result_0.txt, expected a folder of results", folder));
  const auto is_log = [](const std::string& name) { return name.starts_with("result_") && name.ends_with(".txt"); };
  if (std::ranges::count_if(list_directory(folder), is_log) > std::ssize(runs))
    throw DataError(fmt::format("{}: result_{}.txt is missing, and there are others; a result has all of its runs",
                                folder, runs.size()));
  return runs;
}

void add_summary_command(CLI::App& mlperf) {
  const auto options = std::make_shared<SummaryOptions>();
  CLI::App* command = mlperf.add_subcommand("summary", "show times, samples to target and score of a benchmark's runs");
  add_argument(*command, "DIR", options->folder, "folder with result_0.txt, result_1.txt …");
  command->add_option("--against-reference", options->reference, "test the samples to the target against those in FILE")
      ->option_text("FILE");
  command->add_option("--write-reference", options->reference_to_write, "write those of these runs to FILE")
      ->option_text("FILE");
  command->add_option("--svg", options->picture, "draw validation loss over samples")->option_text("FILE.svg");
  command->callback([options] {
    std::optional<mlperf::Reference> reference;
    if (!options->reference.empty()) reference = mlperf::read_reference(options->reference);
    const std::vector<mlperf::RunResult> runs = results_in(options->folder);
    print_blocks(mlperf::summary_blocks(runs, reference));
    if (!options->picture.empty()) write_file(options->picture, mlperf::plot_evaluations(runs));
    if (!options->reference_to_write.empty()) write_file(options->reference_to_write, mlperf::reference_text(runs));
    flush_output();
  });
}

}  // namespace

void add_mlperf_command(CLI::App& app, int& exit_code) {
  CLI::App* mlperf = app.add_subcommand("mlperf", "MLPerf Training: check and sum up the logs of runs");
  mlperf->require_subcommand(1);
  add_summary_command(*mlperf);
  const auto options = std::make_shared<LintOptions>();
  CLI::App* command =
      mlperf->add_subcommand("lint", "check logs of MLPerf Training for what the official checker omits");
  command->add_option("PATH", options->paths, "logs, or directories with results: folders with files result_*.txt")
      ->option_text("PATH")
      ->required()
      ->check(file_name());
  std::vector<std::string> rounds(std::begin(mlperf::kRounds), std::end(mlperf::kRounds));
  command->add_option("--round", options->round, "the round whose rules apply; default: the benchmark's last")
      ->check(CLI::IsMember(rounds));
  command->add_flag("--json", options->json, "print the findings as JSON");
  command->footer(
      "Exit code: 0 without errors, 65 with errors in the logs, 64 for paths that do not exist. Benchmarks: gpt3, "
      "llama31_405b and llama31_8b.");
  command->callback([options, &exit_code] {
    const mlperf::Lint lint = mlperf::lint(options->paths, options->round);
    if (options->json) fmt::print("{}", to_json(lint));
    else print_findings(lint);
    flush_output();
    if (lint.count(mlperf::Level::error) > 0) exit_code = DataError("").exit_code();
  });
}

}  // namespace trivet
