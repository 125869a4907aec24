// trivet schedule: shows a pipeline schedule, without a model or a GPU: a picture of a simulated step, and a table of
// the bubble (next to the closed form if one exists), peak slots and transfers. With --measured, shows a measured step
// of a run next to its simulation. trivet schedule context: the work of a ring of context-parallel ranks.
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <memory>
#include <unistd.h>

#include "base/check.h"
#include "base/files.h"
#include "base/host.h"
#include "base/text.h"
#include "launch/commands.h"
#include "parallel/pipeline/check.h"
#include "parallel/pipeline/simulate.h"
#include "tools/draw/context_picture.h"
#include "tools/draw/measured_run.h"
#include "tools/draw/render.h"
#include "tools/draw/schedule_table.h"

namespace trivet {
namespace {

struct ScheduleOptions {
  std::vector<std::string> kinds{"1f1b"};
  int p = 4, m = 8;
  std::optional<int> v, group_size;
  std::string file;
  std::string measured;  // run_dir
  std::optional<int64_t> step;
  std::vector<double> costs{1, 1, 1}, embedding, head;  // F, I, W
  Costs transfer;                                       // `stages` is unset
  std::string svg;
  bool text = false, transfers = false, list = false;
  int columns = 0, width = 0;
};

StageCosts stage_costs(const char* option, const std::vector<double>& numbers) {
  if (numbers.size() == 3) return {numbers[0], numbers[1], numbers[2]};
  if (numbers.size() == 2) return {numbers[0], numbers[1] / 2, numbers[1] / 2};
  throw ConfigError(fmt::format("{} takes F,I,W or F,B, but got {} numbers", option, numbers.size()));
}

// The cost of a rank's layers is split evenly among its chunks; the first stage adds the embedding, the last the head.
Costs costs_of(const ScheduleOptions& options, const Schedule& schedule) {
  Costs costs = options.transfer;
  const StageCosts rank = stage_costs("--costs", options.costs);
  const double v = schedule.v;
  const StageCosts chunk{rank.forward / v, rank.backward_input / v, rank.backward_weight / v};
  costs.stages.assign(static_cast<size_t>(schedule.stages()), chunk);
  const auto add = [](StageCosts& stage, const StageCosts& extra) {
    stage.forward += extra.forward;
    stage.backward_input += extra.backward_input;
    stage.backward_weight += extra.backward_weight;
  };
  if (!options.embedding.empty()) add(costs.stages.front(), stage_costs("--embedding", options.embedding));
  if (!options.head.empty()) add(costs.stages.back(), stage_costs("--head", options.head));
  double sum = costs.latency + (costs.bandwidth > 0 ? costs.bytes / costs.bandwidth : 0);
  for (const StageCosts& stage : costs.stages) sum += stage.forward + stage.of(OpKind::backward);
  if (!(sum < 1e100))
    throw ConfigError(
        fmt::format("--costs, --embedding, --head and a transfer's time: {:g} in all, expected less than "
                    "1e100; --unit names the unit",
                    sum));
  return costs;
}

std::vector<Schedule> schedules_of(const ScheduleOptions& options) {
  std::vector<Schedule> schedules;
  if (!options.file.empty()) {
    schedules.push_back(read_schedule_file(options.file));
  } else {
    for (const std::string& kind : options.kinds)
      schedules.push_back(make_schedule({kind, options.p, options.m, options.v, options.group_size}));
  }
  for (const Schedule& schedule : schedules) check_schedule(schedule);
  return schedules;
}

std::string title_of(const ScheduleOptions& options, const Schedule& schedule) {
  std::string title = fmt::format("{}: p = {}, m = {}", schedule.kind, schedule.p, schedule.m);
  if (schedule.v > 1) title += fmt::format(", v = {}", schedule.v);
  if (schedule.group_size && *schedule.group_size != schedule.p) title += fmt::format(", N = {}", *schedule.group_size);
  const StageCosts costs = stage_costs("--costs", options.costs);
  if (costs.forward != 1 || costs.backward_input != 1 || costs.backward_weight != 1)
    title +=
        fmt::format(", F : I : W = {:g} : {:g} : {:g}", costs.forward, costs.backward_input, costs.backward_weight);
  const auto ends = [&](const char* stage, const std::vector<double>& extra) {
    if (extra.empty()) return;
    const StageCosts costs = stage_costs("--embedding and --head", extra);
    title += fmt::format(", {} stage + {:g}", stage, costs.forward + costs.of(OpKind::backward));
  };
  ends("first", options.embedding);
  ends("last", options.head);
  const Costs& transfer = options.transfer;
  const double hop = transfer.latency + (transfer.bandwidth > 0 ? transfer.bytes / transfer.bandwidth : 0);
  if (hop > 0) title += fmt::format(", {}transfers take {:g}", transfer.blocking ? "blocking " : "", hop);
  return title;
}

// The costs measured in a run's steps, one line per stage.
void print_costs(const MeasuredRun& run) {
  fmt::print("\nmedian ms of an op in {} steps; a message takes {:.3f} ms{}\n", run.steps.size(), run.costs.latency,
             run.costs.blocking ? ", and its sender waits" : "");
  for (int stage = 0; stage < run.schedule.stages(); ++stage) {
    const StageCosts& cost = run.costs.stages[static_cast<size_t>(stage)];
    fmt::print("  stage {} on rank {}: F {:.3f}", stage, run.schedule.rank_of(stage), cost.forward);
    if (cost.backward_weight > 0) fmt::print(", I {:.3f}, W {:.3f}", cost.backward_input, cost.backward_weight);
    if (cost.backward_weight == 0 || cost.whole_saves != 0) fmt::print(", B {:.3f}", cost.of(OpKind::backward));
    fmt::print("\n");
  }
}

void run(const ScheduleOptions& options) {
  if (options.list) {
    TextBlock kinds;
    for (const ScheduleKind& kind : schedule_kinds())
      kinds.rows.push_back({std::string(kind.name), std::string(kind.summary)});
    return print_blocks({kinds});
  }
  std::optional<MeasuredRun> measured;
  if (!options.measured.empty()) measured = read_measured_run(options.measured, options.step);
  const std::vector<Schedule> schedules = measured ? std::vector{measured->schedule} : schedules_of(options);
  if (options.text) {
    if (schedules.size() > 1) throw ConfigError("--text prints one schedule, but --kind names several");
    fmt::print("{}", to_text(schedules[0]));
    return;
  }
  TextOptions look;
  look.columns = options.columns > 0 ? options.columns : terminal_columns(STDOUT_FILENO);
  if (look.columns == 0) look.columns = 160;
  look.colors = isatty(STDOUT_FILENO) && !std::getenv("NO_COLOR");
  std::vector<Timeline> timelines;
  TextBlock table{.title = "", .rows = {schedule_columns()}, .align = "lrrlrrrrrr"};
  const auto show = [&](const Schedule& schedule, const Costs& costs, Timeline timeline, const char* how = "") {
    fmt::print("{}\n{}\n", timeline.title, render_text(timeline, look));
    table.rows.push_back(schedule_row(schedule, costs, timeline));
    table.rows.back()[0] += how;
    timelines.push_back(std::move(timeline));
  };
  if (measured) {
    show(schedules[0], measured->costs, measured->measured, ", measured");
    show(schedules[0], measured->costs, measured->simulated, ", simulated");
  } else {
    for (const Schedule& schedule : schedules) {
      const Costs costs = costs_of(options, schedule);
      Timeline timeline = simulate(schedule, costs);
      timeline.title = title_of(options, schedule);
      show(schedule, costs, std::move(timeline));
    }
  }
  print_blocks({table});
  if (measured) print_costs(*measured);
  if (!options.svg.empty())
    write_file(options.svg, render_svg(timelines, {.width = options.width, .transfers = options.transfers}));
}

// The schedule's source: built in, a file, or a run. Returns --measured, which takes costs and sizes from the run.
CLI::Option* add_sources(CLI::App& command, ScheduleOptions& options) {
  CLI::Option* file =
      command.add_option("--file", options.file, "a schedule in text form, as --text prints it")->check(input_path());
  CLI::Option* measured = command
                              .add_option("--measured", options.measured,
                                          "a run's folder, with a trace.json (train.trace=true): show a measured step "
                                          "next to its simulation with the run's own costs")
                              ->option_text("RUN_DIR")
                              ->excludes(file);
  command.add_option("--step", options.step, "with --measured: the step; default: the median one")
      ->check(whole_number(1))
      ->needs(measured);
  const auto request = [&](const char* name, auto& value, const std::string& help) {
    return command.add_option(name, value, help)->excludes(file)->excludes(measured);
  };
  std::vector<std::string_view> names;
  for (const ScheduleKind& kind : schedule_kinds()) names.push_back(kind.name);
  const std::string kinds = fmt::format("one or more schedules to show: {}", fmt::join(names, ", "));
  const auto name = [](std::string_view text) {
    return text.empty() ? std::nullopt : std::optional(std::string(text));
  };
  add_list(command, "--kind", options.kinds, "names of schedules separated by commas", name, kinds)
      ->default_str("1f1b")
      ->excludes(file)
      ->excludes(measured);
  request("--pipeline", options.p, "pipeline ranks, p")->capture_default_str();
  request("--microbatches", options.m, "micro-batches per step, m")->capture_default_str();
  request("--chunks", options.v, "model chunks per rank, v; default: what the kind takes");
  request("--group-size", options.group_size,
          "interleaved: consecutive micro-batches per chunk, N; default: the smallest that works");
  return measured;
}

void add_costs(CLI::App& command, ScheduleOptions& options, CLI::Option* measured) {
  Costs& transfer = options.transfer;
  const auto given = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->excludes(measured);
  };
  const auto cost = [](std::string_view text) {
    const auto value = parse_number(text);
    return value && *value >= 0 ? value : std::nullopt;
  };
  const auto times = [&](const char* name, std::vector<double>& value, const char* help) {
    return add_list(command, name, value, "numbers of at least 0 separated by commas, F,I,W or F,B", cost, help)
        ->excludes(measured);
  };
  times("--costs", options.costs,
        "time of a rank's layers for one micro-batch: F,I,W (forward, backward input, backward weight half) or F,B")
      ->default_str("1,1,1");
  times("--embedding", options.embedding, "extra time of the first stage, F,I,W or F,B");
  times("--head", options.head, "extra time of the last stage, F,I,W or F,B");
  given("--latency", transfer.latency, "time from sending a message to receiving it")->check(at_least_zero());
  CLI::Option* bytes = given("--bytes", transfer.bytes, "size of a message")->check(at_least_zero());
  bytes->needs(
      given("--bandwidth", transfer.bandwidth, "bandwidth between two ranks, bytes per unit of time; 0: no limit")
          ->check(at_least_zero())
          ->needs(bytes));
  command.add_flag("--blocking", transfer.blocking, "a rank does nothing else while it sends")->excludes(measured);
  given("--depth", transfer.channel_depth, "messages that a channel holds; default: any number")
      ->check(whole_number(1, std::numeric_limits<int>::max()));
  given("--unit", transfer.unit, "unit of all times; default: an abstract one")
      ->check(CLI::IsMember({"s", "ms", "us"}));
}

void add_outputs(CLI::App& command, ScheduleOptions& options) {
  CLI::Option* svg = command.add_option("--svg", options.svg, "write the picture to this file")->check(svg_name());
  command.add_flag("--transfers", options.transfers, "with --svg: a lane of messages under each rank")->needs(svg);
  command.add_option("--width", options.width, "with --svg: pixels; default: as wide as the numbers need")
      ->check(whole_number(1, 100'000))
      ->needs(svg);
  command.add_flag("--kinds", options.list, "only list the kinds and what each does");
  command.add_option("--columns", options.columns, "width of the text picture; default: the terminal's")
      ->check(whole_number(1, 100'000));
  command.add_flag("--text", options.text, "print only the text form, which --file reads")->excludes(svg);
}

void add_context_command(CLI::App& schedule) {
  struct ContextOptions {
    int ranks = 4;
    std::vector<int64_t> documents;
    std::string svg;
  };
  const auto options = std::make_shared<ContextOptions>();
  CLI::App* command =
      schedule.add_subcommand("context", "context parallelism: which rank computes which part of attention");
  command->add_option("--ranks", options->ranks, "ranks that share a sequence")
      ->capture_default_str()
      ->check(whole_number(2, 64));
  command
      ->add_option("--documents", options->documents,
                   "documents packed into the sequence, by their shares of its length")
      ->delimiter(',')
      ->check(whole_number(1, 1'000'000'000));
  command->add_option("--svg", options->svg, "write the picture to this file")->check(svg_name());
  command->callback([options] {
    const std::vector<ContextWork> cuts = context_work(options->ranks, options->documents);
    print_blocks({table_of(cuts)});
    if (!options->svg.empty()) write_file(options->svg, render_context_svg(cuts));
  });
}

}  // namespace

void add_schedule_command(CLI::App& app) {
  const auto options = std::make_shared<ScheduleOptions>();
  CLI::App* command = app.add_subcommand("schedule", "show pipeline schedules and simulate a step of each");
  CLI::Option* measured = add_sources(*command, *options);
  add_costs(*command, *options, measured);
  add_outputs(*command, *options);
  add_context_command(*command);
  command->callback([options, command] {
    if (command->get_subcommands().empty()) run(*options);
  });
}

}  // namespace trivet
