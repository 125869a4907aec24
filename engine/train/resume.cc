#include "engine/train/resume.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fmt/format.h>
#include <optional>

#include "base/check.h"
#include "base/files.h"
#include "engine/checkpoint/store.h"
#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "engine/config/validate.h"
#include "engine/data/bpe_model.h"

namespace trivet {
namespace {

// Sections whose changes matter to a resumed run.
constexpr std::array<std::string_view, 5> kRunSections{"model", "batch", "optimizer", "precision", "data"};

// The keys that Megatron's OptimizerParamScheduler compares, plus the run's length if weight decay ramps over it.
bool is_of_schedules(const Field& field, const Config& config) {
  if (field.name == "train.train_iters" || field.name == "train.train_samples")
    return config.optimizer.weight_decay_incr_style != Ramp::constant;
  const auto has = [&](std::string_view part) { return field.key().find(part) != std::string_view::npos; };
  return field.section() == "optimizer" && (has("lr") || has("weight_decay"));
}

// Resets rates that equal auto's to auto: the schedule is the same.
Config with_auto_rates(Config config) {
  OptimizerConfig& o = config.optimizer;
  if (o.decoupled_lr == o.lr) o.decoupled_lr.reset();
  if (o.decoupled_min_lr == o.min_lr) o.decoupled_min_lr.reset();
  return config;
}

}  // namespace

void settle_schedules(const OpenCheckpoint& checkpoint, Config& config, std::vector<std::string>& notes) {
  if (config.train.skip_train) return;
  const TrainState& state = checkpoint.state;
  const int64_t samples = batch_sizes_of(config, *config.batch.global_batch_size).samples_of(state.step);
  if (config.train.train_samples > 0 && samples != state.consumed_samples)
    throw ConfigError(
        fmt::format("{}: train.train_samples: found {} samples in {} steps, which are {} with this run's "
                    "batch sizes; expected those of the checkpoint, or a run that counts steps "
                    "(train.train_iters)",
                    checkpoint.directory, state.consumed_samples, state.step, samples));
  if (config.optimizer.override_opt_param_scheduler) return;
  Config saved = parse_saved_config(checkpoint.state.config, checkpoint.directory + "/train_state.json");
  const bool take = config.optimizer.use_checkpoint_opt_param_scheduler &&
                    (saved.train.train_samples > 0) == (config.train.train_samples > 0);
  std::string problems;
  for (const Field& field : fields()) {
    if (!checkpoint.state.config.contains(std::string(field.name)) || !is_of_schedules(field, config)) continue;
    const std::string then = format_field(field, saved), now = format_field(field, config);
    if (then == now || format_field(field, with_auto_rates(saved)) == format_field(field, with_auto_rates(config)))
      continue;
    if (take && field.section() == "optimizer") {
      field.copy(field.at(saved), field.at(config));
      notes.push_back(fmt::format("{} is {}, the checkpoint's value, not {}", field.name, then, now));
    } else {
      problems += fmt::format("\n  {}: found {} in the checkpoint and {} in this run", field.name, then, now);
    }
  }
  const bool other_length = saved.train.train_iters != config.train.train_iters;  // auto's schedules follow it
  if (!problems.empty())
    throw ConfigError(fmt::format(
        "{}: the checkpoint has different schedules:{}\nexpected the same; "
        "optimizer.override_opt_param_scheduler=true takes this run's{}{}",
        checkpoint.directory, problems, other_length ? ", which follow train_iters, as a longer run wants" : "",
        config.optimizer.use_checkpoint_opt_param_scheduler
            ? ": the checkpoint's do not fit it"
            : fmt::format(", optimizer.use_checkpoint_opt_param_scheduler=true the checkpoint's{}",
                          other_length ? ", whose rate stays at min_lr beyond their end" : "")));
}

std::string checkpoints_folder(const std::string& run_dir) { return run_dir + "/checkpoints"; }

std::map<std::string, std::string> values_of(const Config& config) {
  std::map<std::string, std::string> values;
  for (const Field& field : fields()) values[std::string(field.name)] = format_field(field, config);
  return values;
}

void check_same_model(const OpenCheckpoint& checkpoint, const Config& config, const std::string& remedy) {
  Config saved = parse_saved_config(checkpoint.state.config, checkpoint.directory + "/train_state.json");
  // With RoPE the weights fit any context: an imported model states its longest, and a run that starts from another
  // run's checkpoint may use a longer one. Only training that extends the context adapts them to other angles.
  Config own = config;
  const bool extends = !config.train.skip_train && config.model.seq_length > saved.model.seq_length;
  if ((checkpoint.state.step == 0 || remedy.empty()) && saved.model.position_embedding_type == Positions::rope)
    for (const Field& field : fields())
      if (field.name == "model.seq_length" || (extends && (field.name.starts_with("model.rotary_base") ||
                                                           field.name.starts_with("model.use_rope_scaling") ||
                                                           field.name.starts_with("model.rope_scaling_"))))
        field.copy(field.at(own), field.at(saved));
  std::string problems;
  for (const Field* field : keys_of_another_model(config, saved))
    problems += fmt::format("\n  {}: found {} in the checkpoint, expected this run's {}", field->name,
                            format_field(*field, saved), format_field(*field, config));
  if (!problems.empty())
    throw DataError(checkpoint.directory + ": the checkpoint is of a different model:" + problems + remedy);
}

void check_step(const OpenCheckpoint& checkpoint) {
  const auto named = step_of_name(std::filesystem::path(checkpoint.directory).filename().string());
  if (named.value_or(checkpoint.state.step) != checkpoint.state.step)
    throw DataError(
        fmt::format("{}: holds step {}, expected the step in its name", checkpoint.directory, checkpoint.state.step));
}

void check_same_tokenizer(const OpenCheckpoint& checkpoint, const std::string& fingerprint) {
  const std::string& found = checkpoint.state.tokenizer;
  if (!found.empty() && !fingerprint.empty() && found != fingerprint)
    throw DataError(
        fmt::format("{}: the model was trained with a different tokenizer: found the fingerprint {}, expected "
                    "that of this run's data, {}{}",
                    checkpoint.directory, found, fingerprint, bpe_difference(found, fingerprint)));
}

std::vector<std::string> checkpoints_to_resume(const std::string& how, Config& config,
                                               std::vector<std::string>& notes) {
  const CheckpointStore store(checkpoints_folder(config.train.run_dir));
  if (how == "none") {
    if (const auto steps = store.steps(); config.checkpoint.save_interval > 0 && !steps.empty())
      throw ConfigError(
          fmt::format("--resume none: {} has checkpoints, up to step {}, which a new run would mix with "
                      "its own: choose another train.run_dir, or move them away",
                      store.folder(), steps.front()));
    return {};
  }
  if (how == "auto") {
    if (store.steps().empty() && file_exists(store.folder() + "/latest"))
      throw DataError(
          fmt::format("{0}/latest names a checkpoint that does not exist, and there is no other: put it back, or "
                      "remove {0} to train from the beginning",
                      store.folder()));
    if (const std::string problem = store.latest_problem(); !problem.empty()) notes.push_back(problem);
    const std::vector<std::string> paths = store.paths();
    for (const std::string& path : paths) {  // a run has one model: check the first readable checkpoint
      std::optional<OpenCheckpoint> checkpoint;
      try {
        checkpoint = open_checkpoint(path);
      } catch (const Error&) {  // loading reports why
        continue;
      }
      check_same_model(*checkpoint, config, "\nchoose another train.run_dir, or move its checkpoints away");
      settle_schedules(*checkpoint, config, notes);
      break;
    }
    return paths;
  }
  if (!file_exists(how)) throw ConfigError(fmt::format("--resume {}: there is no such file or directory", how));
  const auto read = [&](const std::string& path) {
    const OpenCheckpoint checkpoint = open_checkpoint(path);
    check_same_model(checkpoint, config);
    settle_schedules(checkpoint, config, notes);
    return std::vector{path};
  };
  return read_latest(how, read, [&](const std::string& note) { notes.push_back(note); });
}

std::vector<std::string> changes_since(const std::string& checkpoint, const TrainState& state, const Config& config,
                                       const std::map<std::string, std::string>& data, bool other_data) {
  std::vector<std::string> changes;
  for (const auto& [key, now] : values_of(config)) {
    const auto found = state.config.find(key);
    if (found == state.config.end()) continue;
    const bool matters = key == "train.seed" || std::ranges::count(kRunSections, key.substr(0, key.find('.'))) > 0;
    if (matters && found->second != now)
      changes.push_back(fmt::format("changed since the checkpoint: {} was {}, is {}", key, found->second, now));
    const auto trained_on = state.data.find(key), given = data.find(key);
    if (found->second != now || trained_on == state.data.end() || given == data.end() ||
        trained_on->second == given->second)
      continue;
    const std::string problem = fmt::format("{} {}: another dataset than the checkpoint's: found {}, expected {}", key,
                                            now, given->second, trained_on->second);
    if (!other_data)
      throw DataError(fmt::format(
          "{0}; its samples come in a different order: restore that dataset, give this one another path, or "
          "train on it anyway with --resume {1}",
          problem, checkpoint));
    changes.push_back(problem);
  }
  return changes;
}

}  // namespace trivet
