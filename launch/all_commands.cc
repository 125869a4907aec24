// The subcommands of trivet.
#include "launch/commands.h"
#include "launch/help.h"
#include "tools/draw/schedule_picture.h"

namespace trivet {

void add_commands(CLI::App& app, int& exit_code) {
  add_train_command(app, exit_code);
  add_config_command(app, schedule_picture);
  add_watch_commands(app);
  add_generate_command(app);
  add_data_command(app);
  add_convert_command(add_checkpoint_command(app));
  add_schedule_command(app);
  add_study_command(app);
  add_plan_command(app);
  add_explain_command(app);
  add_trace_command(app);
  add_contention_command(app);
  add_preflight_command(app, exit_code);
  add_flight_command(app);
  add_mlperf_command(app, exit_code);
  add_completion_command(app);
}

}  // namespace trivet
