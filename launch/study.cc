// trivet study STUDY.yaml: measures the effect of settings on a run, one process per run. All output goes to the
// study's folder (`out`): results.jsonl, the tables, report.html, plot.svg, and each run's own folder under runs/.

#include "tools/study/study.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <numeric>
#include <optional>

#include "base/files.h"
#include "base/host.h"
#include "base/stop_signal.h"
#include "base/svg.h"
#include "launch/commands.h"
#include "parallel/comm/world.h"
#include "tools/study/child_process.h"
#include "tools/study/compare.h"
#include "tools/study/export.h"
#include "tools/study/report.h"
#include "tools/study/runner.h"
#include "tools/study/scaling.h"
#include "tools/study/study_file.h"
#include "tools/study/summary.h"

namespace trivet {
namespace {

struct StudyOptions {
  std::string path;
  std::string out, export_path, fit;
  bool plan = false, best = false, report = false, retry_failed = false, aa = false, contention = false;
};

// Exit code 75: the results so far are saved, and the same command continues.
struct Unfinished : Error {
  using Error::Error;
  int exit_code() const override { return 75; }
};

std::string program_path() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw IoError("/proc/self/exe: " + error.message());
  return path.string();
}

void write_reports(const Study& study, const Plan& plan, const std::vector<RunRow>& rows) {
  const Summary summary = summarize(study, plan, rows);
  make_folder(study.out);
  write_file(study.out + "/table.md", markdown_report(study, plan, summary, rows));
  write_file(study.out + "/table.csv", csv_report(study, plan, summary));
  write_file(study.out + "/report.html", html_report(study, plan, summary, rows));
  write_file(study.out + "/plot.svg", ratio_picture(study, plan, summary));
}

void warn_of_shared_cores(const Plan& plan) {
  const int threads = std::ranges::max(plan.points, {}, &Point::threads).threads, cores = usable_cores();
  if (threads > cores) print_text(shared_cores_text(threads, cores));
}

void print_plan(const Study& study, const Plan& plan, const std::vector<RunRow>& rows) {
  const std::vector<double> seconds = run_seconds(plan, rows);  // for every point, or NaN for all
  const bool measured = !std::isnan(seconds[0]);
  const std::vector<PlannedRun> runs = remaining_runs(study, plan, rows, rounds_wanted(study, plan, rows));

  TextBlock table = point_columns(study, fmt::format("study {}: points", study.name));
  for (const char* name : {"ranks", "memory per rank", "runs to do"}) table.column(name, 'r');
  if (measured) table.column("s per run", 'r');
  double total = 0, round = 0;
  for (const PlannedRun& run : rest_of_round(study, plan, {}, 1)) round += seconds[run.point];
  for (size_t i = 0; i < plan.points.size(); ++i) {
    const Point& point = plan.points[i];
    std::vector<std::string> row = point_cells(study, plan, i);
    const auto todo = std::ranges::count(runs, i, &PlannedRun::point);
    row.push_back(std::to_string(point.launch.ranks));
    if (point.launch.launcher != Launcher::threads) row.back() += fmt::format(" {}", word_of(point.launch.launcher));
    row.push_back(bytes_text(point.memory_bytes));
    row.push_back(std::to_string(todo) + (plan.baseline == i ? " (baseline)" : ""));
    if (measured) row.push_back(fmt::format("{:.2f}", seconds[i]));
    table.rows.push_back(std::move(row));
    total += static_cast<double>(todo) * seconds[i];
  }
  for (const TextBlock& block : {table, same_table(study, plan), dropped_table(study, plan)})
    if (block.rows.size() > 1) print_blocks({block}), fmt::print("\n");
  print_text(extent_text(study, plan, summarize(study, plan, rows)) + ".");
  print_text(fmt::format("{} runs to do: {}.", runs.size(),
                         measured ? "about " + duration_text(std::ceil(total)) + ", from the finished runs"
                                  : "the study says after its first run how long they take"));
  warn_of_shared_cores(plan);
  if (study.budget_minutes > 0 && total > 60 * study.budget_minutes)
    print_text(fmt::format("The budget of {:g} minutes ends before: it holds {:.1f} rounds of all points.",
                           study.budget_minutes, 60 * study.budget_minutes / round));
  if (!plan.baseline)
    print_text("The baseline is not among the points that can run: ratios are to the first that can.");
  if (!study.auto_repeats && study.repeats < kFewestRounds)
    print_text(fmt::format("{} {} too few for a verdict: at least {}, or repeats: auto.",
                           counted(study.repeats, "round"), study.repeats == 1 ? "is" : "are", kFewestRounds));
}

// The command line of a run with the settings of a point. Its length, evaluations and checkpoints are those of the base
// unless a level sets them.
std::string command_text(const Study& study, const Point& point) {
  const std::string program = std::filesystem::proximate(program_path()).string();
  std::string text = shell_text(launch_command(point.launch, {program, "train", study.base}));
  const auto of_level = [&](std::string_view key) {
    return std::ranges::any_of(study.factors, [&](const Factor& factor) {
      return std::ranges::any_of(factor.levels, [&](const Level& level) {
        return std::ranges::count(level.settings, key, &Setting::key) > 0;
      });
    });
  };
  for (const std::string& set : point.sets) {
    const std::string_view key = std::string_view(set).substr(0, set.find('='));
    const bool of_study = key == "train.train_iters" || key == "train.trace" || key == "train.eval_interval" ||
                          key.starts_with("checkpoint.");
    if (!of_study || of_level(key)) text += " \\\n    --set " + shell_text({set});
  }
  return text + '\n';
}

// Throws if no run succeeded, as there is nothing to report; with `all`, also if a run failed, was killed or
// timed out: the other results are valid, but one is missing.
void check_success(const Study& study, const Plan& plan, const Summary& summary, bool all = false,
                   const char* mode = "") {
  if (summary.done > 0 && !(all && summary.failed > 0)) return;
  for (size_t i = 0; i < plan.points.size(); ++i) {
    const std::string& failure = summary.points[i].failure;
    if (failure.empty()) continue;
    const std::string what =
        summary.done == 0
            ? "no run has succeeded"
            : fmt::format("{} of {} points have a failed run (trivet study {}{} --retry-failed runs them again)",
                          summary.failed, plan.points.size(), study.path, mode);
    throw Error(fmt::format("study {}: {}; the first failure, of {}: {}", study.name, what,
                            describe_choice(study, plan.points[i].choice), failure));
  }
  throw ConfigError(fmt::format("study {}: it has no runs yet; trivet study {} makes them", study.name, study.path));
}

void check_losses(const Study& study, const Plan& plan, const Summary& summary) {
  if (summary.disagreements == 0) return;
  std::string text =
      fmt::format("{} of {} points do not have the expected losses:", summary.disagreements, plan.points.size());
  for (size_t i = 0; i < plan.points.size(); ++i)
    if (!summary.points[i].disagreement.empty())
      text += fmt::format("\n{}: {}", describe_choice(study, plan.points[i].choice), summary.points[i].disagreement);
  throw NumericsError(text);
}

void print_best(const Study& study, const Plan& plan, const std::vector<RunRow>& rows) {
  const Summary summary = summarize(study, plan, rows);
  check_success(study, plan, summary);
  check_losses(study, plan, summary);
  for (const std::string& winner : winner_texts(study, plan, summary)) print_text(winner);
  print_text(resolution_text(summary));
  fmt::print("\n");
  print_blocks({effect_table(study, plan, summary)});
  for (const Conclusion& conclusion : summary.conclusions) {
    if (!conclusion.leader) continue;
    // Among tied points, prefer the baseline: it needs no change.
    const bool keep = summary.may_be_best(conclusion.baseline);
    const Point& point = plan.points[keep ? conclusion.baseline : *conclusion.leader];
    const std::string conditions = describe_conditions(study, point.choice);
    fmt::print("\n{}{}{}", conditions.empty() ? "" : "# with " + conditions + '\n',
               keep && conclusion.baseline != *conclusion.leader
                   ? fmt::format("# the baseline: {} is ahead, but not shown to be better\n",
                                 describe_chosen(study, plan.points[*conclusion.leader].choice))
                   : "",
               command_text(study, point));
  }
}

void print_run(const Study& study, const Plan& plan, const StudyProgress& progress) {
  const RunRow& row = progress.row;
  std::string result = row.reason;
  if (row.outcome == RunEnd::done) {
    const auto metric = row.metrics.find(study.metric);
    result = metric == row.metrics.end() ? "no " + study.metric : metric_text(study.metric, metric->second);
    if (const auto exposed = row.metrics.find("exposed_fraction"); exposed != row.metrics.end())
      result += ", exposed " + percent_text(exposed->second);
  } else {
    result = fmt::format("{}: {}", word_of(row.outcome), result);
  }
  fmt::print("[{}/{}] repeat {} of {}: {}; {:.1f} s, left {}\n", progress.done, progress.total, row.repeat,
             describe_choice(study, plan.points[progress.point].choice), result, row.seconds,
             duration_text(std::ceil(progress.seconds_left)));
  std::fflush(stdout);
}

// The result of the A/A study for `study`: the deviation between equal points.
std::optional<double> measured_noise(const Study& study, const Plan& plan) {
  const Study equal = equal_points_of(study, plan);
  const std::vector<RunRow> rows = read_results(equal.out + "/results.jsonl");
  if (rows.empty()) return {};
  const Summary summary = summarize(equal, make_plan(equal), rows);
  return summary.resolution ? std::optional(summary.resolution->deviation) : std::nullopt;
}

// Prints an A/A study's conclusions about itself and about the study it was derived from.
void print_equal_points(const Summary& summary, const Study& study, Plan plan) {
  const auto differ = std::ranges::count_if(summary.points, [](const PointSummary& point) {
    return point.verdict == Verdict::better || point.verdict == Verdict::worse;
  });
  fmt::print("{} of {} equal points have a verdict (in 95 % of A/A studies none has).\n", differ,
             summary.points.size() - 1);
  plan.noise = measured_noise(study, plan);
  const std::vector<RunRow> rows = read_results(study.out + "/results.jsonl");
  if (const std::string text = resolution_text(summarize(study, plan, rows)); !text.empty())
    fmt::print("Study {}: {}\n", study.name, text);
}

void finish(const Study& study, const Plan& plan, const std::vector<RunRow>& rows, StudyEnd end) {
  const Summary summary = summarize(study, plan, rows);
  fmt::print("\n");
  print_blocks({result_table(study, plan, summary)});
  print_text("Verdicts are corrected for the number of points (Holm): an interval without 1 may be within noise.");
  fmt::print("\n");
  if (study.responses.size() > 1) print_blocks({response_table(study, plan, summary)}), fmt::print("\n");
  if (summary.done > 0) print_blocks({step_table(study, plan, summary)});
  fmt::print("\n");
  print_text(extent_text(study, plan, summary) + ".");
  for (const std::string& winner : winner_texts(study, plan, summary)) print_text(winner);
  if (!study.equal_points) print_text(resolution_text(summary));
  fmt::print("Report: {}/report.html\n", study.out);
  std::fflush(stdout);
  check_losses(study, plan, summary);
  if (end == StudyEnd::stopped)
    throw Unfinished("stopped; the same command continues with the remaining runs, and new ones of their baseline");
  // With repeats: auto, a spent budget is one of the two normal ways to end.
  if (end == StudyEnd::budget && study.auto_repeats && summary.rounds > kFewestRounds)
    fmt::print("The budget of {:g} minutes is spent; some interval is still wider than {:g} %.\n", study.budget_minutes,
               100 * study.interval_width);
  else if (end == StudyEnd::budget)
    throw Unfinished(
        fmt::format("the budget of {:g} minutes is spent; the same command continues with the remaining runs",
                    study.budget_minutes));
  check_success(study, plan, summary, true);
}

std::vector<RunRow> read_some_results(const Study& study) {
  std::vector<RunRow> rows = read_results(study.out + "/results.jsonl");
  if (rows.empty())
    throw ConfigError(fmt::format("study {}: it has no runs yet; trivet study {} makes them", study.name, study.path));
  return rows;
}

// Exports the results of the study's current points, or all results if it can no longer be planned (its base is gone).
void export_results(const Study& study, const std::string& path) {
  std::vector<RunRow> rows = read_some_results(study);
  const auto all = static_cast<int64_t>(rows.size());
  try {
    const Plan plan = make_plan(study);
    std::erase_if(rows, [&](const RunRow& row) { return std::ranges::count(plan.points, row.point, &Point::id) == 0; });
  } catch (const Error& error) {
    fmt::print(stderr, "trivet: all results are exported, because the study cannot be planned: {}\n", error.what());
  }
  const auto kept = static_cast<int64_t>(rows.size());
  const std::string others = kept < all ? fmt::format(", {} of other points left out", all - kept) : "";
  fmt::print("{}: {} of {}{}\n", path, counted(export_steps(study, rows, path), "row"), counted(kept, "run"), others);
}

// ---- --fit scaling

std::vector<ScalingRun> scaling_runs(const Study& study, const Plan& plan, const std::vector<RunRow>& rows) {
  std::vector<ScalingRun> runs;
  for (const Point& point : plan.points) {
    ScalingRun& run = runs.emplace_back();
    run.name = describe_choice(study, point.choice);
    run.parameters = point.parameters, run.tokens = point.tokens;
    run.predicted = std::ranges::count(study.predict, point.choice) > 0;
    for (const RunRow& row : rows)
      if (row.point == point.id && row.metrics.contains("validation_loss"))
        run.loss = row.metrics.at("validation_loss");
  }
  return runs;
}

// out: the output folder; "": none.
void report_scaling(const std::vector<ScalingRun>& runs, const std::string& name, const std::string& out) {
  const ScalingFit fit = fit_scaling(runs, name);
  const TextBlock law = law_table(runs, fit), predictions = prediction_table(runs, fit);
  print_blocks({law, predictions});
  if (out.empty()) return;
  const std::string picture = isoflop_picture(runs, fit);
  make_folder(out);
  write_file(out + "/scaling.csv", csv_of(runs));
  write_file(out + "/scaling.svg", picture);
  write_file(
      out + "/scaling.html",
      html_page(
          "A scaling law: " + name,
          html_section({.heading = law.title, .table = law}) +
              html_section({.heading = "IsoFLOP curves, and predictions", .picture = picture, .table = predictions})));
  fmt::print("{0}/scaling.html, scaling.csv, scaling.svg\n", out);
}

// Runs the points to be fitted, and predicts the other points before running them.
void run_scaling(const Study& study, const Plan& plan, std::vector<RunRow>& rows, const RunPoint& run_point,
                 RunnerOptions runner) {
  for (const Point& point : plan.points)
    if (std::ranges::count(point.sets, "train.eval_interval=0") > 0)
      throw ConfigError(study.path +
                        ": set.train.eval_interval is required by --fit: it fits the losses of the "
                        "evaluation at a run's end, which is the only one with 1_000_000");
  if (!plan.dropped.empty()) print_blocks({dropped_table(study, plan)});
  check_design(scaling_runs(study, plan, rows), study.path);
  for (const bool predicted : {false, true}) {
    Plan part;  // each point is its own baseline: no run is repeated
    std::ranges::copy_if(plan.points, std::back_inserter(part.points), [&](const Point& point) {
      return (std::ranges::count(study.predict, point.choice) > 0) == predicted;
    });
    part.baseline = 0;
    part.baselines.resize(part.points.size());
    std::iota(part.baselines.begin(), part.baselines.end(), size_t{0});
    if (part.points.empty()) continue;
    runner.ended = [&](const StudyProgress& progress) { print_run(study, part, progress); };
    if (run_study(study, part, rows, run_point, runner) != StudyEnd::complete)
      throw Unfinished("runs of the scaling law are missing; the same command continues with them");
    check_success(study, part, summarize(study, part, rows), true, " --fit scaling");
    report_scaling(scaling_runs(study, plan, rows), study.path, study.out);
    std::fflush(stdout);
  }
}

void run(const StudyOptions& options) {
  if (launched_world_size() > 0)
    throw ConfigError("trivet study starts the ranks of its runs itself: call it without mpirun or srun");
  if (options.path.ends_with(".csv")) {
    if (options.fit.empty() || options.retry_failed)
      throw ConfigError(options.path + ": a table of runs goes with --fit and --out, and no other option");
    std::error_code none;
    if (std::filesystem::equivalent(options.path, options.out + "/scaling.csv", none))
      throw ConfigError(fmt::format("--out: {} would replace {}; expected another folder", options.out, options.path));
    return report_scaling(read_scaling_runs(options.path), options.path, options.out);
  }
  Study study = load_study(options.path);
  if (!options.out.empty()) study.out = options.out;
  if (file_exists(study.out) && !std::filesystem::is_directory(study.out))
    throw ConfigError(study.out + ": the study's folder is a file; expected a folder, or a new name");
  if (!options.export_path.empty()) {
    check_writable({options.export_path}, {study.path, study.base, study.out + "/results.jsonl"});
    return export_results(study, options.export_path);
  }
  Plan plan = make_plan(study);
  if (plan.points.empty()) {
    print_blocks({dropped_table(study, plan)});
    std::fflush(stdout);
    throw ConfigError(fmt::format("{}: none of the study's {} points can run", study.path, plan.dropped.size()));
  }
  const Study designed = study;
  const Plan designed_plan = plan;
  if (options.aa) study = equal_points_of(designed, designed_plan), plan = make_plan(study);
  else plan.noise = measured_noise(study, plan);
  const bool runs = !options.best && !options.report && !options.plan;
  std::optional<RunDirectory> lock;
  if (runs) lock.emplace(lock_study(designed));  // before reading the results
  std::vector<RunRow> rows = read_results(study.out + "/results.jsonl");
  if (options.best) return print_best(study, plan, rows);
  if (options.report) {
    write_reports(study, plan, read_some_results(study));
    fmt::print("{}/report.html, table.md, table.csv, plot.svg\n", study.out);
    return;
  }
  if (options.plan) return print_plan(study, plan, rows);

  warn_of_shared_cores(plan);
  watch_stop_signals("the study ends; start it again to continue", "the study ends now; its last run is not recorded");
  const auto stop_asked = [] { return stop_signal() != 0; };
  make_folder(study.out);
  if (options.contention) return measure_study_contention(study, plan, program_path(), stop_asked);
  write_file(study.out + "/study.yaml", study.text);
  RunnerOptions runner{.retry_failed = options.retry_failed, .now_seconds = now_seconds, .stop_asked = stop_asked};
  runner.ended = [&](const StudyProgress& progress) {
    print_run(study, plan, progress);
    if (progress.round_ended) write_reports(study, plan, rows);
  };
  const std::string program = program_path();
  const RunPoint run_point = process_runner(study, program, stop_asked, provenance_of(this_build(), program));
  if (!options.fit.empty()) return run_scaling(study, plan, rows, run_point, runner);
  const StudyEnd end = run_study(study, plan, rows, run_point, runner);
  write_reports(study, plan, rows);
  finish(study, plan, rows, end);
  if (options.aa) print_equal_points(summarize(study, plan, rows), designed, designed_plan);
}

void add_compare_command(CLI::App& study) {
  auto folders = std::make_shared<std::pair<std::string, std::string>>();
  CLI::App* command =
      study.add_subcommand("compare", "compare the results of two machines, commits or environments, point by point");
  add_argument(*command, "A", folders->first, "folder of a finished study (its `out`)");
  add_argument(*command, "B", folders->second, "another one, with the same factors and metric");
  command->callback([folders] {
    const StudyResults a = load_results(folders->first), b = load_results(folders->second);
    const StudyComparison comparison = compare_studies(a, b);
    for (const std::string& text : comparison.texts) print_text(text);
    fmt::print("\n");
    print_blocks({comparison_table(a, comparison)});
  });
}

}  // namespace

void add_study_command(CLI::App& app) {
  auto options = std::make_shared<StudyOptions>();
  CLI::App* command =
      app.add_subcommand("study", "measure what settings do to a run: factors, levels, repeats, a report");
  command->add_option("STUDY.yaml", options->path, "YAML file of the study (docs/studies.md)")
      ->option_text("STUDY.yaml");
  command->add_option("--out", options->out, "folder of the study, instead of the file's `out`")->option_text("DIR");
  CLI::Option* aa = command->add_flag(
      "--aa", options->aa,
      "measure equal points instead (copies of the baseline, in OUT/aa): this machine's noise, and the smallest effect "
      "that the study can see");
  CLI::Option* exported =
      command
          ->add_option("--export", options->export_path,
                       "only write a CSV file with a row per run and step: every metric, the levels, the provenance")
          ->option_text("FILE")
          ->check(file_name())
          ->excludes(aa);
  CLI::Option* retry =
      command->add_flag("--retry-failed", options->retry_failed, "repeat the runs that failed in an earlier call");
  CLI::Option* fit =
      command
          ->add_option("--fit", options->fit,
                       "scaling: run what is missing, fit L(N, D) = E + A/N^alpha + B/D^beta to the validation losses, "
                       "and predict the points of `predict` before they are run; of a .csv file: only fit its runs")
          ->check(CLI::IsMember({"scaling"}))
          ->excludes(aa);
  const std::vector<CLI::Option*> modes{
      exported,
      fit,
      command->add_flag("--plan", options->plan, "only show the points, why some cannot run, and what is left to do"),
      command->add_flag("--best", options->best, "only name the best point and the main effects"),
      command->add_flag("--report", options->report, "only write the tables and the report again"),
      command->add_flag("--contention", options->contention,
                        "measure GEMMs during a collective instead (OUT/contention.json): under the baseline's "
                        "launcher and links, on GPUs for several CTA budgets of NCCL")};
  for (CLI::Option* one : modes)
    for (CLI::Option* other : modes)
      if (one != other) one->excludes(other);
  for (CLI::Option* mode : modes)
    if (mode != fit) retry->excludes(mode);
  add_compare_command(*command);
  command->callback([options, command] {
    if (!command->get_subcommands().empty()) return;
    if (options->path.empty()) throw CLI::RequiredError("STUDY.yaml");
    run(*options);
  });
}

}  // namespace trivet
