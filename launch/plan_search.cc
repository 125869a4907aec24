#include <fmt/format.h>

#include "base/files.h"
#include "base/stop_signal.h"
#include "engine/train/run.h"
#include "launch/commands.h"
#include "launch/plan.h"
#include "launch/redrawn_line.h"
#include "tools/plan/search_report.h"

namespace trivet {
namespace {

constexpr size_t kBest = 10;

std::string text_of(const SearchProgress& p) {
  if (p.bounded < p.families)
    return fmt::format("bounds {}", progress_bar(static_cast<double>(p.bounded) / static_cast<double>(p.families)));
  std::string text = fmt::format("{} of {}, {} rehearsed", grouped(static_cast<int64_t>(p.decided)),
                                 counted(static_cast<int64_t>(p.layouts), "layout"), p.rehearsed);
  if (p.best_seconds > 0) text += fmt::format(", best {:.4g} s", p.best_seconds);
  if (p.refining) return text + ", switches";
  return p.next_seconds > 0 ? text + fmt::format(", next at least {:.4g} s", p.next_seconds) : text;
}

// Returns true if it replaced an existing file.
bool write_best(const std::string& path, const Candidate& best, const LoadedConfig& run, const CommConfig& links,
                const System& system) {
  LoadedConfig open = best.open;
  if (directing_section(open.config))
    resolve(open, facts_of(open.config, best.prediction.step.ranks));  // sets the keys that the section's rules derive
  Config config = open.config;
  config.comm = links;
  const bool replaces = file_exists(path);
  write_file(path,
             fmt::format("# {} on {} ranks of {}, as trivet plan --search has it: {:.4g} s per step.\n\n{}", run.path,
                         best.prediction.step.ranks, system.name, best.prediction.step.step_seconds, to_yaml(config)));
  return replaces;
}

}  // namespace

CLI::Option* add_search_options(CLI::App& command, PlanSearch& search) {
  CLI::Option* wanted = command.add_flag("--search", search.wanted, "search for the fastest layouts that fit");
  command.add_option("--search-out", search.out, "file to write the best one to")
      ->option_text("FILE.yaml")
      ->check(file_name())
      ->capture_default_str()
      ->needs(wanted);
  command.add_option("--study", search.study, "file to write a study of the ten best to")
      ->option_text("FILE.yaml")
      ->check(file_name())
      ->needs(wanted);
  add_number(command, "--search-seconds", search.seconds, number("a number above 0", [](double x) { return x > 0; }),
             "end the search after this time, with what it has")
      ->needs(wanted);
  return wanted;
}

void run_search(const PlanSearch& search, const LoadedConfig& run, const CommConfig& links, int ranks,
                const System& system, bool json) {
  check_writable({search.out, search.study}, {run.path});
  watch_stop_signals("the search ends with what it has", "the search ends immediately");
  RedrawnLine line;
  SearchOptions options{.best = kBest, .seconds = search.seconds, .threads = static_cast<size_t>(usable_cores())};
  options.stop = [] { return stop_signal() != 0; };
  options.progress = [&](const SearchProgress& progress) {
    if (line.due()) line.draw(text_of(progress));
  };
  const SearchResult result = trivet::search(run, facts_of(run.config, ranks), system, options);
  line.clear();
  const auto write = [&] {
    if (!search.study.empty()) write_file(search.study, study_of(result, run, system, search.study, kBest));
    return write_best(search.out, result.found.front(), run, links, system);
  };
  if (json) {
    fmt::print("{}", to_json(result, system, search.out, kBest));
    write();
    return;
  }
  print_blocks(describe(result, kBest));
  const bool replaced = write();
  fmt::print("\n");
  print_text(extent_of(result, kBest));
  print_text(fmt::format("{} has the best one{}.\n", search.out, replaced ? ", replacing the previous file" : ""));
  if (!search.study.empty()) print_text(fmt::format("{} has the best as a study (trivet study).\n", search.study));
  print_blocks({changes_of(result.found.front())});
}

}  // namespace trivet
