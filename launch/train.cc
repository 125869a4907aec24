// trivet train RUN.yaml: ranks are threads of this process, or, under mpirun or srun, this process is one rank. With
// NCCL on GPUs it execs mpirun, which runs the same command on every rank (start_processes).

#include <atomic>
#include <fmt/ranges.h>
#include <memory>
#include <optional>

#include "base/sink_queue.h"
#include "base/stop_signal.h"
#include "engine/config/load.h"
#include "engine/config/problems.h"
#include "engine/config/validate.h"
#include "engine/train/run.h"
#include "launch/commands.h"
#include "parallel/comm/world.h"

namespace trivet {
namespace {

struct TrainOptions {
  std::string path;
  std::vector<std::string> sets;
  int ranks = 0;  // 0: not given
  std::string prompt;
  std::optional<uint64_t> seed;  // for samples; none: train.seed
  RunOptions run;
  std::vector<std::string> faults;
};

int run(TrainOptions& options) {
  options.run.faults = parse_faults(options.faults);
  options.run.program = provenance_value(this_build(), "version") + ", commit " + provenance_value(this_build(), "commit");
  const LoadedConfig loaded = load_config(options.path, options.sets);
  options.run.sampling.seed = options.seed.value_or(static_cast<uint64_t>(loaded.config.train.seed));
  const int needed = ranks_of_one_replica(loaded.config);
  const int ranks = options.ranks > 0 ? options.ranks : needed;
  // Reports layout problems before the ranks start.
  if (launched_world_size() == 0 && loaded.config.comm.backend != CommBackend::mpi)
    naming_keys([&] {
      LoadedConfig own = loaded;
      resolve(own, facts_of(own.config, ranks));
      start_processes(own.config, ranks);
    });
  std::atomic<int> exit_code = 0;  // the same on all ranks
  QueuedOutput out;  // its log file is opened once the run's folder exists
  const auto rank_main = [&](Communicator& world) {
    try {
      exit_code = run_training(loaded, options.run, world, out);
    } catch (...) {
      out.drain();  // before MPI ends the process
      throw;
    }
  };
  run_ranks(loaded.config.comm.backend, options.ranks, needed, rank_main);
  return exit_code;
}

// Adds the options for the prompt and the sampling of generated text. Returns the prompt's option.
CLI::Option* add_sampling(CLI::App& command, TrainOptions& options) {
  Sampling& sampling = options.run.sampling;
  CLI::Option* prompt =
      command
          .add_option(
              "--generate", options.prompt,
              "prompt from which the model generates text after each evaluation and at the end; \"\": a new document")
          ->option_text("PROMPT");
  const auto number = [&](const char* name, auto& value, const CLI::Validator& check, const char* help) {
    add_number(command, name, value, check, help)->needs(prompt);
  };
  number("--generate-tokens", sampling.tokens, whole_number(1), "how many tokens to generate");
  number("--temperature", sampling.temperature, at_least_zero(), "of the sampling; 0: always the most likely token");
  number("--top-k", sampling.top_k, whole_number(0), "sample from this many tokens; 0: from all");
  number("--top-p", sampling.top_p, share(), "of those, from the most likely of this probability; 1: all");
  command.add_option("--seed", options.seed, "seed of the sampling; default: train.seed")
      ->option_text("N")
      ->check(whole_number(0))
      ->needs(prompt);
  return prompt;
}

}  // namespace

void add_train_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "train a model");
  add_argument(*command, "RUN.yaml", options->path, "YAML file of the run");
  add_ranks_option(*command, options->ranks,
                   "ranks: threads or GPU processes; default: as many as one model needs");
  add_set_option(*command, options->sets, "override a value of the file");
  CLI::Option* prompt = add_sampling(*command, *options);
  command
      ->add_option("--resume", options->run.resume,
                   "auto: from the run's newest checkpoint, if there is one; none; or the path of a checkpoint or run")
      ->option_text("auto|none|PATH")
      ->capture_default_str();
  command
      ->add_option("--inject", options->faults,
                   fmt::format("inject a fault (docs/faults.md); RANK: a number, last or all; PHASE: step, forward, "
                               "backward, reduce, optimizer or save; help: what each does; FAULT: {}",
                               fmt::join(fault_names(), ", ")))
      ->option_text("FAULT:RANK:STEP[:PHASE]")
      ->allow_extra_args(false)
      ->each([](const std::string& fault) {
        if (fault != "help") return;
        fmt::print("{}", fault_table());
        throw CLI::Success();
      });
  command->footer(
      "Exit codes: 0 done, 64 configuration or usage, 65 bad input data, 70 internal error or a rank that failed, "
      "74 I/O, 75 saved, please requeue, 93 do not requeue, 124 a hang, 128+n signal n. RUN_DIR/outcome.json has "
      "details; trivet flight RUN_DIR shows what each rank's communication was doing.");
  command->callback([options, prompt, &exit_code] {
    if (prompt->count() > 0) options->run.prompt = options->prompt;
    // Rank 0 reports signals for all ranks, and in more detail once training has started.
    if (launched_rank() > 0) watch_stop_signals("", "");
    else watch_stop_signals("the run ends after its first step", "the run ends immediately, before its first step");
    options->run.stop_signal = stop_signal;
    exit_code = run(*options);
  });
}

}  // namespace trivet
