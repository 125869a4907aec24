// trivet: one program, a subcommand a file. Errors end here: one message, and the exit code that says who has to act
// (0 done, 64 config or usage, 65 bad input data, 70 internal, 74 I/O, 75 saved, start again, 93 do not requeue,
// 124 hang).
#include <CLI/CLI.hpp>
#include <cstdio>

#include "kernels/base/check.h"
#include "launch/commands.h"

int main(int argc, char** argv) {
  CLI::App app("Trivet: GPT pretraining with tensor, pipeline and data parallelism", "trivet");
  app.require_subcommand(1);
  int exit_code = 0;
  trivet::add_train_command(app, exit_code);
  trivet::add_config_command(app);
  trivet::add_generate_command(app);
  trivet::add_data_command(app);
  trivet::add_checkpoint_command(app);
  trivet::add_schedule_command(app);
  trivet::add_study_command(app);
  trivet::add_flight_command(app);
  try {
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 64;
  } catch (const trivet::Error& error) {
    std::fprintf(stderr, "trivet: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trivet: internal error: %s\n", error.what());
    return 70;
  }
}
