// Picks the checkpoint that a run resumes from, and checks that its model, tokenizer and data are the run's.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/checkpoint/open_checkpoint.h"
#include "engine/data/tokenizer.h"

namespace trivet {

struct Config;

std::string checkpoints_folder(const std::string& run_dir);

// The checkpoints that --resume names, in the order in which to try them; empty: the run starts from step 0. how:
// "none"; "auto": the run's own, the latest first; else the path of a checkpoint, a checkpoint folder or a run.
// notes: receives remarks for the user. config: takes the checkpoint's schedules if it asks for them. Throws
// ConfigError, also if the path does not exist or the schedules differ, and DataError if a checkpoint is of a
// different model, before anything is allocated.
std::vector<std::string> checkpoints_to_resume(const std::string& how, Config& config, std::vector<std::string>& notes);

// All values by key, as text: the configuration as a checkpoint stores it.
std::map<std::string, std::string> values_of(const Config& config);

// Throw DataError if a checkpoint's step differs from that in its name (step-…), or if its model or tokenizer
// fingerprint is not the run's. remedy: ends the message.
void check_step(const OpenCheckpoint& checkpoint);
void check_same_model(const OpenCheckpoint& checkpoint, const Config& config, const std::string& remedy = "");
// Like Megatron's OptimizerParamScheduler, throws ConfigError if the learning-rate or weight-decay schedules differ
// from the checkpoint's, unless override_opt_param_scheduler or use_checkpoint_opt_param_scheduler settles which to
// use. Always throws for different batch sizes in a run that counts samples, as its steps follow from those sizes.
void settle_schedules(const OpenCheckpoint& checkpoint, Config& config, std::vector<std::string>& notes);
void check_same_tokenizer(const OpenCheckpoint& checkpoint, const std::string& fingerprint);

// The changes since the checkpoint that matter, one line each. data: TrainingData::identities. Throws DataError if a
// dataset has different content under the same path; with `other_data`, that is one of the lines instead.
std::vector<std::string> changes_since(const std::string& checkpoint, const TrainState& state, const Config& config,
                                       const std::map<std::string, std::string>& data, bool other_data);

}  // namespace trivet
