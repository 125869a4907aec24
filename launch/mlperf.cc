// trivet mlperf lint: what the official checker of MLPerf logs does not look at.
#include <memory>

#include "base/utf8.h"
#include "engine/mlperf/lint.h"
#include "engine/mlperf/rules.h"
#include "launch/commands.h"

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

}  // namespace

void add_mlperf_command(CLI::App& app, int& exit_code) {
  CLI::App* mlperf = app.add_subcommand("mlperf", "MLPerf Training: check the logs of runs");
  mlperf->require_subcommand(1);
  const auto options = std::make_shared<LintOptions>();
  CLI::App* command =
      mlperf->add_subcommand("lint", "find in logs of MLPerf Training what the official checker does not look at");
  command->add_option("PATH", options->paths, "logs; of a directory all results in it: folders with files result_*.txt")
      ->option_text("PATH")
      ->required()
      ->check(file_name());
  std::vector<std::string> rounds(std::begin(mlperf::kRounds), std::end(mlperf::kRounds));
  command->add_option("--round", options->round, "the round whose rules hold; default: the benchmark's last")
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
