// trivet trace RUN_DIR: prints a table of every communicator's calls in one step, from a run's trace.json. Options also
// draw those calls below the ranks' compute, and export the whole trace for other tools.
#include <fmt/format.h>
#include <memory>

#include "base/files.h"
#include "launch/commands.h"
#include "tools/draw/step_timeline.h"

namespace trivet {
namespace {

struct TraceOptions {
  std::string run_dir, svg, hta;
  std::optional<int64_t> step;
  std::vector<int64_t> ranks;
};

}  // namespace

void add_trace_command(CLI::App& app) {
  const auto options = std::make_shared<TraceOptions>();
  CLI::App* command = app.add_subcommand("trace", "show what ranks computed and communicated in a step of a run");
  add_argument(*command, "RUN_DIR", options->run_dir, "train.run_dir of a run with train.trace=true");
  command->add_option("--step", options->step, "the step; default: the median one")->check(whole_number(1));
  add_list(*command, "--ranks", options->ranks, "ranks separated by commas", parse_integer,
           "ranks to show; default: the first of each pipeline stage");
  command->add_option("--svg", options->svg, "write the picture of the step to this file")->check(svg_name());
  command->add_option("--hta", options->hta, "write all steps to this folder for Holistic Trace Analysis")
      ->option_text("DIR")
      ->check(file_name());
  command->callback([options] {
    const std::string trace = trace_of_run(options->run_dir);
    const StepTimeline timeline = read_step_timeline(trace, options->step, options->ranks);
    print_blocks({table_of(timeline)});
    if (!options->svg.empty()) write_file(options->svg, render_svg(timeline));
    if (!options->hta.empty()) write_hta_traces(trace, options->hta);
  });
}

}  // namespace trivet
