// The subcommands of trivet. Each adds itself to the program; its callback throws trivet::Error, which main() reports.
#pragma once

namespace CLI {
class App;
}

namespace trivet {

void add_train_command(CLI::App& app, int& exit_code);  // exit_code: where the run did not end as usual
void add_config_command(CLI::App& app);
void add_data_command(CLI::App& app);
void add_checkpoint_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_schedule_command(CLI::App& app);
void add_flight_command(CLI::App& app);
void add_study_command(CLI::App& app);

}  // namespace trivet
