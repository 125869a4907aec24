// trivet generate CHECKPOINT: generates text from a saved model, in any layout. Ranks are threads of this process, or,
// under mpirun or srun, this process is one rank.
#include "engine/train/generate.h"

#include <cstdio>
#include <fmt/ranges.h>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include "base/files.h"
#include "base/host.h"
#include "engine/checkpoint/open_checkpoint.h"
#include "engine/checkpoint/store.h"
#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "engine/config/problems.h"
#include "engine/data/text_printer.h"
#include "engine/data/tokenizer.h"
#include "engine/fault/run_guard.h"
#include "engine/train/inference.h"
#include "launch/commands.h"
#include "parallel/comm/host_world.h"
#include "parallel/comm/world.h"

namespace trivet {
namespace {

constexpr int64_t kLargestPrompt = 1 << 20;

struct GenerateOptions {
  std::string checkpoint, prompt, prompt_file, tokenizer;
  std::vector<int32_t> prompt_tokens;
  Sampling sampling{.tokens = 80};
  int ranks = 0, tensor = 1, pipeline = 1;
  std::vector<std::string> sets;
};

// Reads the prompt from standard input, which requires a single process.
void read_prompt(GenerateOptions& options) {
  if (launched_world_size() > 1)
    throw ConfigError("--prompt-file -: a launcher gives standard input to one rank only; name a file");
  options.prompt.resize(kLargestPrompt + 1);
  options.prompt.resize(read_all(STDIN_FILENO, options.prompt));
  if (options.prompt.size() > kLargestPrompt)
    throw DataError(fmt::format("--prompt-file -: has more than {} bytes", kLargestPrompt));
  options.prompt_file.clear();
}

// The tokenizer that the model was trained with; null if it cannot be found.
std::unique_ptr<Tokenizer> open_checked_tokenizer(const GenerateOptions& options, const OpenCheckpoint& checkpoint,
                                                  int64_t vocab) {
  const std::string path = options.tokenizer.empty() ? tokenizer_of(checkpoint) : options.tokenizer;
  if (path.empty()) return nullptr;
  auto tokenizer = path == "bytes" ? make_bytes_tokenizer() : load_tokenizer(path);
  check_tokenizer(*tokenizer, checkpoint.state.tokenizer, vocab, checkpoint.directory);
  return tokenizer;
}

std::vector<int32_t> prompt_of(const GenerateOptions& options, const Tokenizer* tokenizer,
                               const std::string& checkpoint) {
  if (!options.prompt_tokens.empty()) return options.prompt_tokens;
  if (!tokenizer)
    throw ConfigError(checkpoint +
                      ": does not lead to its tokenizer; give --tokenizer PATH or bytes, or --prompt-tokens");
  const std::string text =
      options.prompt_file.empty() ? options.prompt : read_small_file(options.prompt_file, kLargestPrompt);
  return tokenizer->encode_prompt(text);
}

// Rejects --set for keys that determine the shapes and meaning of the weights.
void check_model(const Config& saved, const Config& config) {
  for (const Field* field : keys_of_another_model(saved, config))
    throw ConfigError(fmt::format("--set {}: found {}, but the checkpoint's model has {}, which cannot be changed",
                                  field->name, format_field(*field, config), format_field(*field, saved)));
}

// resolve_for: finds the model's layout on `ranks` ranks. Throws ConfigError if there is none.
struct Resolved {
  LoadedConfig loaded;
  Layout layout;
};
Resolved resolve_for(const GenerateOptions& options, const OpenCheckpoint& checkpoint, int ranks) {
  Resolved run{inference_config(checkpoint, options.tensor, options.pipeline, options.sets), {}};
  check_model(inference_config(checkpoint, options.tensor, options.pipeline, {}).config, run.loaded.config);
  run.layout = resolve(run.loaded, {.world_size = ranks});
  const auto& mesh = run.layout.mesh;
  if (mesh[Axis::cp] > 1)
    throw ConfigError(
        fmt::format("parallel.context_parallel_size: {}: generation needs whole sequences on a rank; expected 1, "
                    "whatever the checkpoint was trained with",
                    mesh[Axis::cp]));
  if (mesh[Axis::dp] > 1)
    throw ConfigError(
        fmt::format("one model takes {} ranks (tensor {} x pipeline {}), but there are {}: choose "
                    "--tensor-parallel and --pipeline-parallel with that product",
                    ranks / mesh[Axis::dp], mesh[Axis::tp], mesh[Axis::pp], ranks));
  return run;
}

void run_rank(const GenerateOptions& options, Communicator& world) {
  const double start = now_seconds();
  const auto find = [&] {  // rank 0 decides for all
    return HostWorld(world).broadcast(world.rank() == 0 ? find_checkpoints(options.checkpoint).front() : "");
  };
  OpenCheckpoint checkpoint;
  Resolved run;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<int32_t> prompt;
  std::unique_ptr<Rank> model;
  read_latest(find, [&](const std::string& directory) {
    const auto failure = failure_of_all(HostWorld(world), [&] {
      checkpoint = open_checkpoint(directory);
      run = resolve_for(options, checkpoint, world.size());
      tokenizer = open_checked_tokenizer(options, checkpoint, *run.loaded.config.model.vocab_size);
      prompt = prompt_of(options, tokenizer.get(), directory);
    });
    if (failure) std::rethrow_exception(failure);
    check_same_everywhere({{"configuration and prompt", to_yaml(run.loaded.config) + fmt::format("{}", prompt)},
                           {"checkpoint " + directory, fingerprint_of(checkpoint), true},
                           {"tokenizer", tokenizer ? tokenizer->fingerprint() : "none", true}},
                          gather_places(world), world);
    // Allocate only for the length of this text.
    const auto text_length = static_cast<int64_t>(prompt.size()) + options.sampling.tokens;
    const int64_t positions = std::min(run.loaded.config.model.seq_length, text_length);
    run.loaded.config.device.threads_per_rank = threads_for_tokens(run.loaded.config, world);
    model = open_model(run.loaded.config, run.layout, world, checkpoint, positions);
  });
  Sampling sampling = options.sampling;
  if (tokenizer) sampling.stop_token = tokenizer->eod(), sampling.vocab = tokenizer->vocab_size();
  const double loaded_at = now_seconds();
  std::optional<TextPrinter> printer;
  if (world.rank() == 0) {
    printer.emplace(tokenizer.get(), [](const std::string& piece) {
      fmt::print("{}", piece);
      flush_output();
    });
    printer->add(prompt);
  }
  const auto text = generate(*model, prompt, sampling, [&](int32_t token) {
    if (printer) printer->add({&token, 1});
  });
  if (!printer) return;
  printer->finish();
  const double took = now_seconds() - loaded_at;
  const bool stopped = static_cast<int64_t>(text.size()) < sampling.tokens;
  write_stderr(fmt::format("[{}, step {}: loaded in {:.2f} s, {} tokens in {:.2f} s, {:.1f} tokens/s{}]\n",
                           checkpoint.directory, checkpoint.state.step, loaded_at - start, text.size(), took,
                           static_cast<double>(text.size()) / std::max(took, 1e-9),
                           stopped ? ", end of document" : ""));
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "generate text with a saved model");
  Sampling& sampling = options->sampling;
  add_argument(*command, "CHECKPOINT", options->checkpoint, "a checkpoint, or the latest one of a folder or run");
  CLI::Option* prompt =
      command->add_option("--prompt", options->prompt, "prompt to continue; without it, a new document")
          ->option_text("TEXT");
  CLI::Option* file = command->add_option("--prompt-file", options->prompt_file, "file of a prompt; -: standard input")
                          ->check(input_path())
                          ->option_text("FILE")
                          ->excludes(prompt);
  const auto token_id = [](std::string_view text) {
    const auto id = parse_integer(text);
    return id && std::in_range<int32_t>(*id) ? id : std::nullopt;
  };
  add_list(*command, "--prompt-tokens", options->prompt_tokens, "token ids separated by commas", token_id,
           "the prompt as token ids; needs no tokenizer")
      ->option_text("1,2,3")
      ->excludes(prompt)
      ->excludes(file);
  command->add_option("--tokenizer", options->tokenizer, "tokenizer, instead of the one that the run names")
      ->option_text("PATH.model|tokenizer.json|bytes");
  add_number(*command, "--tokens", sampling.tokens, whole_number(1), "how many tokens to add, at most");
  add_number(*command, "--temperature", sampling.temperature, at_least_zero(), "0: always the most likely token");
  add_number(*command, "--top-k", sampling.top_k, whole_number(0), "sample from this many tokens; 0: from all");
  add_number(*command, "--top-p", sampling.top_p, share(),
             "of those, from the most likely that together have this probability; 1: from all");
  add_number(*command, "--seed", sampling.seed, whole_number(0), "seed of the sampling");
  command->add_option("--tensor-parallel", options->tensor, "ranks that share each layer")
      ->option_text("T [1]")
      ->check(whole_number(1, kMostRanks));
  command->add_option("--pipeline-parallel", options->pipeline, "pipeline stages that the layers are divided among")
      ->option_text("P [1]")
      ->check(whole_number(1, kMostRanks));
  add_ranks_option(*command, options->ranks, "ranks: threads or GPU processes; default: T times P");
  add_set_option(*command, options->sets, "any other key, such as precision.dtype=fp32 or device.threads_per_rank=4");
  command->callback([options] {
    const Config asked = parse_sets(options->sets);
    const int64_t replica = int64_t{options->tensor} * options->pipeline;
    if (replica > kMostRanks)
      throw ConfigError(fmt::format("--tensor-parallel {} x --pipeline-parallel {} are {} ranks, expected at most {}",
                                    options->tensor, options->pipeline, replica, kMostRanks));
    // Report problems before the ranks start.
    if (launched_world_size() == 0 && asked.comm.backend != CommBackend::mpi)
      naming_keys([&] {
        const int ranks = options->ranks > 0 ? options->ranks : static_cast<int>(replica);
        read_latest(options->checkpoint,
                    [&](const std::string& directory) { resolve_for(*options, open_checkpoint(directory), ranks); },
                    {});
        start_processes(asked, ranks);
      });
    if (options->prompt_file == "-") read_prompt(*options);
    run_ranks(asked.comm.backend, options->ranks, static_cast<int>(replica),
              [&](Communicator& world) { run_rank(*options, world); });
  });
}

}  // namespace trivet
