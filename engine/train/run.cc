#include "engine/train/run.h"

#include <deque>
#include <filesystem>
#include <fmt/ranges.h>
#include <memory>
#include <optional>
#include <ostream>
#include <utility>

#include "base/files.h"
#include "base/host_memory.h"
#include "engine/checkpoint/store.h"
#include "engine/config/blend_text.h"
#include "engine/config/problems.h"
#include "engine/data/statistics.h"
#include "engine/data/text_printer.h"
#include "engine/data/tokenizer.h"
#include "engine/data/training_data.h"
#include "engine/fault/run_guard.h"
#include "engine/metrics/quantisation.h"
#include "engine/train/checkpointing.h"
#include "engine/train/generate.h"
#include "engine/train/procedure.h"
#include "engine/train/reporter.h"
#include "engine/train/trainer.h"
#include "parallel/comm/world.h"

namespace trivet {
namespace {

// Shared by the parts of a run.
struct RunContext {
  const LoadedConfig& loaded;  // resolved
  const Layout& layout;
  const RunOptions& options;
  const TrainingData& data;
  RunGuard& guard;
  RunProcedure* procedure;  // null: none
  std::ostream& out;        // rank 0 prints to it
  int64_t start_ns;
};

// The loss of a model that knows only the token frequencies: the first baseline to beat.
void note_unigram_entropy(const DataConfig& data, Reporter& reporter) {
  const BlendText blend = parse_blend(data.path.empty() ? data.valid_path : data.path);
  if (blend.sources.size() != 1) return;
  const IndexedDataset dataset(blend.sources[0].prefix);
  const DocumentRange documents =
      data.path.empty() ? DocumentRange{0, dataset.sequences()} : split_documents(data.split, dataset.sequences())[1];
  const double entropy = unigram_entropy(count_tokens(dataset, documents));
  reporter.note(fmt::format("the validation set's unigram entropy is {:.4f} nats per token", entropy));
}

std::unique_ptr<Tokenizer> tokenizer_of(const DataConfig& data) {
  return data.tokenizer_model.empty() ? open_tokenizer(first_prefix(data.path.empty() ? data.train_path : data.path))
                                      : load_tokenizer(data.tokenizer_model);
}

void write_sample(const RunContext& run, Trainer& trainer, Reporter& reporter) {
  const auto tokenizer = tokenizer_of(run.loaded.config.data);
  Sampling sampling = run.options.sampling;
  sampling.stop_token = tokenizer->eod();
  sampling.vocab = tokenizer->vocab_size();
  const std::vector<int32_t> prompt = tokenizer->encode_prompt(*run.options.prompt);
  TextPrinter printer(tokenizer.get(), [&](const std::string& piece) { reporter.text(piece); });
  reporter.text("\n");
  printer.add(prompt);
  generate(trainer.rank(), prompt, sampling, [&](int32_t token) { printer.add({&token, 1}); });
  printer.finish();
}

// Throws ConfigError if train.run_dir cannot be a run's folder, for example because it or a folder above it is a file.
void check_run_folder(const std::string& run_dir) {
  const auto refuse = [&](const std::string& what) { throw ConfigError("train.run_dir: " + run_dir + what); };
  std::error_code ignored;
  if (run_dir.starts_with('~')) refuse(": ~ is not expanded here; expected the full path");
  if (file_exists(run_dir + "/manifest.json"))
    refuse(" is a checkpoint, expected a run's folder; --resume " + run_dir + " begins with it");
  if (std::filesystem::is_directory(run_dir, ignored) && !CheckpointStore(run_dir).steps().empty())
    refuse(" is the folder of a run's checkpoints, expected the run's own");
  for (const char* name : {"metrics.jsonl", "config.resolved.yaml", "log", "log.1", "outcome.json"})
    if (const auto type = std::filesystem::symlink_status(run_dir + "/" + name, ignored).type();
        type > std::filesystem::file_type::regular)
      refuse(fmt::format(": {} is not a regular file", name));
  for (std::filesystem::path folder = run_dir; !folder.empty(); folder = folder.parent_path()) {
    const auto type = std::filesystem::status(folder, ignored).type();
    if (type == std::filesystem::file_type::directory || !folder.has_relative_path()) return;
    if (type != std::filesystem::file_type::not_found && type != std::filesystem::file_type::none)
      throw ConfigError(
          fmt::format("train.run_dir: {}: {} is a file, expected a folder, or a new name", run_dir, folder.string()));
  }
}

// An evaluation set, with its samples in batches.
struct EvalSet {
  EvalSet(const char* name, bool at_end, const Samples& data, const BatchPlan& plan, const Config& config,
          const DocumentRules& documents)
      : name(name),
        at_end(at_end),
        samples(config.train.eval_samples > 0  ? config.train.eval_samples
                : config.train.full_validation ? data.samples()
                                               : config.train.eval_iters * config.batch.global_batch_size.value()),
        labels(evaluates_in_order(config.train) ? data.labels_of(samples) : samples * data.seq_length()),
        batches(data, plan.of_full_batches(samples), config.data.prefetch, documents) {}
  const char* name;
  bool at_end;  // evaluated only at the end of the run
  int64_t samples, labels;
  BatchLoader batches;
};

// The validation set, then the test set.
std::deque<EvalSet> eval_sets_of(const RunContext& run, const BatchPlan& plan) {
  std::deque<EvalSet> sets;
  const auto add = [&](const char* name, bool at_end, const std::unique_ptr<Samples>& samples) {
    if (samples) sets.emplace_back(name, at_end, *samples, plan, run.loaded.config, run.data.documents);
  };
  add("validation", false, run.data.valid);
  add("test", true, run.data.test);
  return sets;
}

// Evaluates after a step, and generates a sample. Votes to end the run that arrive during the evaluation are added to
// `votes`. Returns the loss on the first set; empty: the evaluation was interrupted.
std::optional<double> evaluate(const RunContext& run, std::deque<EvalSet>& sets, Trainer& trainer,
                               Checkpointing& checkpointing, Reporter& reporter, Votes& votes) {
  const Config& config = run.loaded.config;
  const int64_t step = trainer.steps_done(), batch = config.batch.global_batch_size.value();
  const auto stop = [&] { return checkpointing.interrupts_evaluation(votes); };
  const bool last = config.train.skip_train || step >= config.train.train_iters;
  std::optional<double> first;
  for (EvalSet& set : sets) {
    if (set.at_end && !last) continue;
    const int64_t begin = now_ns();
    const std::optional<double> loss =
        trainer.evaluate(set.batches, (set.samples + batch - 1) / batch, set.labels, stop);
    checkpointing.set_evaluation_due(!loss);
    if (!loss) {
      reporter.note(fmt::format("the evaluation at step {} was interrupted", step));
      return {};
    }
    if (!first) first = loss;
    if (!set.at_end) checkpointing.set_validation_loss(*loss);
    reporter.evaluation({.step = step,
                         .set = set.name,
                         .loss = *loss,
                         .samples = set.samples,
                         .tokens = set.labels,
                         .seconds = static_cast<double>(now_ns() - begin) * 1e-9});
  }
  if (run.options.prompt && !last) write_sample(run, trainer, reporter);
  return first;
}

// Trains from the current step to the last one, or until the run is asked to stop.
void train_steps(const RunContext& run, Trainer& trainer, Checkpointing& checkpointing, Reporter& reporter,
                 std::deque<EvalSet>& sets) {
  const Config& config = run.loaded.config;
  RunProcedure* const procedure = run.procedure;
  const bool trains = !config.train.skip_train;
  bool going_on = trains && trainer.steps_done() < config.train.train_iters;
  const auto evaluate_now = [&](Votes& votes) {
    if (procedure) procedure->evaluation_begins();
    const auto loss = evaluate(run, sets, trainer, checkpointing, reporter, votes);
    if (procedure) procedure->evaluation_ends(loss);
  };
  if (sets.empty() || !trains) checkpointing.set_evaluation_due(!trains);
  if (checkpointing.evaluation_due() && !procedure) {
    Votes votes;
    evaluate_now(votes);
    going_on = checkpointing.after_step(votes) && trains;
  }
  // On a GPU the next step is queued before the host reads the last one's result, so that the GPU never waits for the
  // host. A trace needs each step's spans separately.
  const bool ahead = trainer.device().kind() == DeviceKind::cuda && !config.train.trace;
  reporter.forget_spans();
  while (going_on) {
    std::optional<Votes> votes;  // empty: no step has ended yet
    const auto report = [&](const StepResult& result) {
      run.guard.set_steps_done(result.step);
      const Votes sum = reporter.step(result, checkpointing.votes());
      if (votes) votes->add(sum);
      else votes = sum;
    };
    if (const auto earlier = trainer.queue_step()) report(*earlier);
    const int64_t step = trainer.steps_done(), interval = config.train.eval_interval;
    const bool evaluates = procedure ? procedure->evaluates(step)
                                     : !sets.empty() && (step % interval == 0 || step == config.train.train_iters);
    if (!ahead || evaluates || checkpointing.needs_result(votes.value_or(Votes{}))) report(trainer.finish_step());
    if (evaluates) evaluate_now(*votes), reporter.forget_spans();
    if (votes) going_on = checkpointing.after_step(*votes);
    if (procedure && procedure->reached()) going_on = false;
  }
}

int train(const RunContext& run, const std::vector<std::string>& candidates, Communicator& world) {
  const auto& [loaded, layout, options, data, guard, procedure, out, start_ns] = run;
  const Config& config = loaded.config;
  // An evaluation does not replace the training run's file.
  const std::string resolved = config.train.run_dir + "/config.resolved.yaml";
  if (world.rank() == 0 && !(config.train.skip_train && file_exists(resolved))) write_file(resolved, to_yaml(config));
  world.barrier();

  QuantisationReport* quantisation = nullptr;
  const MakeBackend make_watched_backend = [&](const Config& c, Communicator& w, int threads) {
    Backend backend = options.make_backend(c, w, threads);
    if (c.precision.fp8_report) {
      auto report = std::make_unique<QuantisationReport>(std::move(backend.ops));
      quantisation = report.get();
      backend.ops = std::move(report);
    }
    if (backend.exchange_on_device) backend.exchange = guard.watch(*backend.exchange);
    return backend;
  };
  const BatchPlan plan = batch_plan_of(config, layout, world.rank());
  std::optional<BatchLoader> train;
  if (data.train) train.emplace(*data.train, plan, config.data.prefetch, data.documents);
  std::deque<EvalSet> sets = eval_sets_of(run, plan);
  if (world.rank() == 0 && train) out << "initializing the weights\n" << std::flush;
  Trainer trainer(config, layout, world, train ? &*train : nullptr,
                  {.faults = guard.faults().none() ? nullptr : &guard.faults(), .make_backend = make_watched_backend});
  const bool on_gpu = trainer.device().kind() == DeviceKind::cuda;
  const int64_t prepare_ns = now_ns();
  if (on_gpu) trainer.prepare_device();
  const double prepare_seconds = static_cast<double>(now_ns() - prepare_ns) * 1e-9;
  Reporter reporter(loaded, layout, {data.sources, options.program, start_ns}, trainer, out);
  if (on_gpu) reporter.note(fmt::format("GPUs prepared by passes on synthetic data in {:.2f} s", prepare_seconds));
  if (!guard.lock_taken_from().empty()) reporter.note("the run folder's lock was left by " + guard.lock_taken_from());
  if (data.valid && world.rank() == 0 && !procedure) note_unigram_entropy(config.data, reporter);
  Checkpointing checkpointing(config, layout, trainer, &reporter,
                              {.tokenizer = data.tokenizer.fingerprint,
                               .data = data.identities,
                               .stop_signal = options.stop_signal,
                               .disk_fault = options.disk_fault ? options.disk_fault : guard.faults().disk_fault(),
                               .faults = guard.faults().none() ? nullptr : &guard.faults(),
                               .folder = world.rank() == 0 ? &guard.folder() : nullptr},
                              start_ns);
  for (const std::string& note : layout.notes) reporter.note(note);
  const bool own = options.resume == "auto";
  // The list as rank 0 sees it: hosts may see changes to a folder at different times.
  auto find = [&, first = true]() mutable {
    std::vector<std::string> paths = candidates;
    if (!std::exchange(first, false) && world.rank() == 0)
      paths = find_checkpoints(own ? config.train.run_dir : options.resume, {});
    if (!own && !paths.empty()) paths.resize(1);
    return trainer.host().broadcast(fmt::to_string(fmt::join(paths, "\n")));
  };
  read_latest(find, [&](const std::string& paths) { checkpointing.resume(paths, own); });
  guard.set_steps_done(trainer.steps_done());
  if (procedure) procedure->start(trainer, data.train->samples(), sets.front().samples, sets.front().labels);
  try {
    train_steps(run, trainer, checkpointing, reporter, sets);
  } catch (const std::exception& error) {
    if (procedure && guard.folder().problem().empty()) procedure->stop(error.what());
    throw;
  }
  if (procedure)
    reporter.note(
        procedure->stop(checkpointing.exit_code() != 0 ? "the run was asked to stop" : "train_iters are done"));
  if (const std::string faults = guard.faults().not_struck(); checkpointing.exit_code() == 0 && !faults.empty())
    write_stderr(fmt::format("[rank {}] --inject {}: never happened in this run\n", world.rank(), faults));
  if (checkpointing.exit_code() == 0 && options.prompt) write_sample(run, trainer, reporter);
  std::vector<TextBlock> more;
  if (quantisation)
    more.push_back(quantisation->table(trainer.state().params.units(), config.model.num_layers, trainer.host()));
  if (quantisation && more[0].rows.size() == 1) more.clear();  // all steps were done before
  reporter.finish(more);
  return checkpointing.exit_code();
}

}  // namespace

RunFacts facts_of(const Config& config, int world_size) {
  const auto vocabulary = data_vocabulary(config.data);
  const std::string prefix = first_prefix(config.data.path.empty() ? config.data.train_path : config.data.path);
  return {.world_size = world_size,
          .dataset_vocab_size = vocabulary ? std::optional(vocabulary->size) : std::nullopt,
          .has_dataset = file_exists(prefix + ".idx") || file_exists(prefix + ".bin")};
}

int run_training(LoadedConfig loaded, const RunOptions& options, Communicator& world, std::ostream& out) {
  const int64_t start_ns = now_ns();
  std::vector<Shared> inputs = {{"configuration", to_yaml(loaded.config) + options.prompt.value_or("")}};
  Layout layout = resolve(loaded, facts_of(loaded.config, world.size()));
  const Config& config = loaded.config;
  check_run_folder(config.train.run_dir);
  for (const Fault& fault : options.faults)
    if (fault.step > config.train.train_iters)
      throw ConfigError(fmt::format("--inject {}: step {} is not in this run, whose train.train_iters is {}",
                                    fault.text, fault.step, config.train.train_iters));
  const MemoryPurpose purpose("a rank of the run");
  if (!computes_on_gpus(config, world)) check_memory(config, layout, launched_world_size() == 0);
  const ToolSection* const director = directing_section(config);
  const std::unique_ptr<RunProcedure> procedure =
      director ? director->procedure(loaded, options.resume != "auto" && options.resume != "none", world) : nullptr;
  const TrainingData data = open_training_data(config, samples_of_run(config, layout));
  // A run with a procedure does not resume after an interruption: its clock would be wrong.
  const std::vector<std::string> candidates = checkpoints_to_resume(
      procedure && options.resume == "auto" ? "none" : options.resume, loaded.config, layout.notes);
  if (config.train.skip_train && candidates.empty())
    throw ConfigError(
        fmt::format("train.skip_train: found no checkpoint in {}, expected one to evaluate; --resume PATH "
                    "names another, and trivet checkpoint convert makes one of weights of Hugging Face",
                    checkpoints_folder(config.train.run_dir)));
  if (options.prompt && config.parallel.context_parallel_size > 1)
    throw ConfigError(
        fmt::format("--generate: generation needs whole sequences on a rank, but parallel.context_parallel_size is {}; "
                    "leave it out, and generate from a checkpoint (trivet generate)",
                    config.parallel.context_parallel_size));
  if (options.prompt && config.precision.fp8_param_gather)
    throw ConfigError(
        "--generate: text is generated in bf16, but no rank has full bf16 weights when they are gathered in FP8; "
        "leave it out and generate from a checkpoint (trivet generate), or set precision.fp8_param_gather to false");
  if (options.prompt) tokenizer_of(config.data);  // a missing tokenizer is an error before training
  for (const auto& [dataset, fingerprint] : data.fingerprints) inputs.push_back({dataset, fingerprint, true});
  inputs.push_back({"tokenizer " + data.tokenizer.source,
                    fmt::format("{} ids, fingerprint {}", data.tokenizer.size, data.tokenizer.fingerprint), true});
  RunGuard guard(config, options.faults, world, inputs);
  return guard.run([&](Communicator& watched) {
    return naming_keys([&] {
      return train({loaded, layout, options, data, guard, procedure.get(), out, start_ns}, candidates, watched);
    });
  });
}

}  // namespace trivet
