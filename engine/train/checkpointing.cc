#include "engine/train/checkpointing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "base/files.h"
#include "base/host_memory.h"
#include "base/scalar.h"
#include "base/stop_signal.h"
#include "engine/config/load.h"
#include "engine/fault/run_guard.h"
#include "engine/train/inference.h"

namespace trivet {
namespace {

constexpr double kMargin = 1.25;            // factor on the expected time of a step and a save
constexpr double kFirstGuess = 100e6;       // bytes per second, until a save has been measured
constexpr int64_t kLookNs = 2'000'000'000;  // between two checks of the run's directory
constexpr int kInterrupted = 128 + 15;      // exit code of a stopped run without checkpoints

// True if `checkpoint` lies in `folder`, a run's checkpoints folder.
bool is_in(const std::string& checkpoint, const std::string& folder) {
  std::error_code ignored;
  return std::filesystem::equivalent(std::filesystem::path(checkpoint).parent_path(), folder, ignored);
}

std::string random_run_name(HostWorld& host) {
  std::random_device random;
  return host.broadcast(fmt::format("{:08x}{:08x}", random(), random()));
}

// The end of the job on the steady clock, read from an environment variable in seconds since the epoch. An invalid
// value is ignored, and its error is stored in `problem`.
std::optional<int64_t> job_end_ns(const char* variable, std::string& problem) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == 0) return {};
  constexpr int64_t kMost = 9'000'000'000;  // its nanoseconds fit in 63 bits
  const int64_t end = parse_integer(text).value_or(-1);
  if (end <= 0 || end > kMost) {
    problem = fmt::format("{}: found {}, expected seconds since the epoch: it is ignored", variable, text);
    return {};
  }
  using namespace std::chrono;
  const int64_t now = duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
  return now_ns() + (end - now) * 1'000'000'000;
}

// The duration of a run's longest save, according to its records; 0: unknown.
int64_t longest_save_of(const std::string& run_dir) {
  double seconds = 0;
  const auto look = [&](const nlohmann::ordered_json& record) {
    if (text_in(record, "event") == "checkpoint") seconds = std::fmax(seconds, number_in(record, "seconds"));
  };
  for_each_step(run_dir + "/metrics.jsonl", nullptr, look, /*most_bytes=*/0);
  return static_cast<int64_t>(std::min(seconds, 1e6) * 1e9);  // capped, whatever a record says
}

std::string layout_text(const MeshShape& mesh, const Config& config) {
  return fmt::format("{}, {}, {}", sizes_text(mesh), config.parallel.pipeline_schedule,
                     word_of(config.parallel.data_parallel_sharding_strategy));
}

}  // namespace

Checkpointing::Checkpointing(const Config& config, const Layout& layout, Trainer& trainer, Reporter* reporter,
                             Options options, int64_t start_ns)
    : config_(config),
      trainer_(trainer),
      reporter_(reporter),
      options_(std::move(options)),
      deadline_ns_(INT64_MAX),
      boundary_ns_(now_ns()) {
  if (config.train.exit_duration_in_mins > 0)
    deadline_ns_ = start_ns + static_cast<int64_t>(config.train.exit_duration_in_mins * 60e9);
  // The scripts in launch/ set the former, under any scheduler; newer versions of Slurm set the latter.
  for (const char* variable : {"TRIVET_END_TIME", "SLURM_JOB_END_TIME"})
    if (std::string text; const auto end = job_end_ns(variable, text)) deadline_ns_ = std::min(deadline_ns_, *end);
    else if (!text.empty()) note(text);
  if (config.checkpoint.save_interval == 0 || config.train.skip_train) return;
  HostWorld& host = trainer.host();
  const CheckpointStore store(checkpoints_folder(config.train.run_dir), Disk(options_.disk_fault));
  // A name that prepare() removes if this process is killed.
  const std::string run = random_run_name(host), seen = store.temporary_path_of(0, run);
  std::string problem;
  if (host.rank() == 0) {
    try {
      if (const std::string left = store.prepare(); !left.empty())
        note("leftovers of an earlier run cannot be removed: " + left);
      write_file(seen, "");
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  if (const std::string text = host.first_problem(problem); !text.empty()) throw IoError(text);
  if (!file_exists(seen))
    problem = fmt::format(
        "train.run_dir: rank 0 wrote a file in {} that is not here, expected a folder that all hosts share: each rank "
        "saves its part of a checkpoint",
        store.folder());
  problem = host.first_problem(problem);
  if (host.rank() == 0) remove_file_if_exists(seen);
  if (!problem.empty()) throw IoError(problem);
  const Retention keep{config.checkpoint.keep_last, config.checkpoint.save_retain_interval,
                       config.checkpoint.keep_best};
  if (host.rank() == 0 && !config.checkpoint.mirror.empty()) {
    try {
      mirror_.emplace(store, CheckpointStore(config.checkpoint.mirror), keep);
    } catch (const IoError& error) {
      problem = fmt::format("checkpoint.mirror: {}", error.what());
      // A missing second disk must not keep a run from resuming.
      if (store.steps().empty()) throw IoError(problem);
      note(problem + "; the run continues without it");
    }
  }
  RankState& state = trainer.state();
  saver_.emplace(CheckpointSaver::Options{.store = store,
                                          .rank = host.rank(),
                                          .ranks = host.size(),
                                          .run = run,
                                          .layout = layout_text(layout.mesh, config),
                                          .config = to_yaml(config),
                                          .keep = keep,
                                          .before_commit =
                                              [folder = options_.folder] {
                                                const std::string problem = folder ? folder->problem() : "";
                                                if (!problem.empty()) throw ConfigError(problem);
                                              },
                                          .committed =
                                              [this](int64_t step) {
                                                update_stop_texts(0, step);
                                                if (mirror_) mirror_->copy(step);
                                              }},
                 saved_tensors(state.flat, *state.optimizer), state.snapshot, trainer.device(),
                 *trainer.rank().compute);
  all_bytes_ = host.sum(saver_->bytes());
}

// ---- resuming

void Checkpointing::resume(const std::string& candidates, bool fall_back) {
  Stream& compute = *trainer_.rank().compute;
  HostWorld& host = trainer_.host();
  std::string problems;
  std::vector<std::string> skipped;
  std::istringstream lines(candidates);
  for (std::string path; std::getline(lines, path);) {
    const MemoryPurpose purpose("loading the checkpoint", path);
    const int64_t begin_ns = now_ns();
    std::string problem, fingerprint;
    TrainState state;
    try {
      const OpenCheckpoint checkpoint = open_checkpoint(path);
      fingerprint = fingerprint_of(checkpoint);
      check_step(checkpoint);
      check_same_model(checkpoint, config_);
      check_same_tokenizer(checkpoint, options_.tokenizer);
      if (const RankState& rank = trainer_.state(); rank.optimizer)
        read_tensors(checkpoint, state_tensors(rank.flat, *rank.optimizer), trainer_.device(), compute,
                     trainer_.threads());
      else read_weights(trainer_.rank(), checkpoint, config_.model.seq_length);
      state = checkpoint.state;
    } catch (const Error& error) {
      problem = error.what();
    }
    problem = host.first_problem(problem);
    if (problem.empty()) {
      check_same_everywhere({{"checkpoint " + path, fingerprint, true}}, gather_places(host.world()), host.world());
      trainer_.resume(state);
      boundary_ns_ = now_ns();  // loading is not part of a step
      const double load_seconds = static_cast<double>(boundary_ns_ - begin_ns) * 1e-9;
      saved_step_ = state.step;
      resumed_step_ = state.step;
      evaluation_due_ = saved_as_due_ = state.evaluation_due;
      for (const std::string& checkpoint : skipped) note("cannot resume from " + checkpoint);
      for (const std::string& line : changes_since(path, state, config_, options_.data, !fall_back)) note(line);
      const bool goes_on = is_in(path, checkpoints_folder(config_.train.run_dir));
      if (goes_on && mirror_) mirror_->copy(state.step);
      if (goes_on) longest_save_ns_ = host.broadcast(host.rank() == 0 ? longest_save_of(config_.train.run_dir) : 0);
      if (reporter_) reporter_->resumed(state.step, path, goes_on, evaluation_due_, load_seconds);
      return update_stop_texts(state.step, state.step);
    }
    problems += "\n" + problem;
    skipped.push_back(path + ": " + problem);
    if (!fall_back) break;
  }
  if (!problems.empty()) throw DataError("no checkpoint could be loaded:" + problems);
  if (reporter_) reporter_->starts();
  update_stop_texts(0, 0);
}

void Checkpointing::note(const std::string& line) {
  if (reporter_) reporter_->note(line);
}

// ---- saving

TrainState Checkpointing::train_state() const {
  return {.step = trainer_.steps_done(),
          .consumed_samples = trainer_.consumed_samples(),
          .consumed_tokens = trainer_.consumed_tokens(),
          .skipped_steps = trainer_.skipped_steps(),
          .config = values_of(config_),
          .tokenizer = options_.tokenizer,
          .data = options_.data,
          .evaluation_due = evaluation_due_,
          .validation_loss = evaluated_step_ == trainer_.steps_done() ? validation_loss_ : std::nullopt};
}

Votes Checkpointing::stop_votes() {
  const int64_t now = now_ns();
  Votes votes;
  votes.stop_signal = options_.stop_signal && options_.stop_signal() != 0;
  votes.out_of_time = out_of_time(now);
  if (options_.folder && (now - looked_ns_ >= kLookNs || needs_result(votes))) {
    looked_ns_ = now;
    votes.folder_lost = !options_.folder->problem().empty();
  }
  return votes;
}

Votes Checkpointing::votes() {
  update_stop_texts(trainer_.steps_done(), 0);
  Votes votes = stop_votes();
  if (saver_) votes.save = saver_->vote();
  return votes;
}

bool Checkpointing::interrupts_evaluation(Votes& sum) {
  sum.add(trainer_.host().sum(stop_votes()));
  pass_boundary();  // each batch counts as a step: none starts if it might exceed the time limit
  return sum.end_run();
}

bool Checkpointing::out_of_time(int64_t now) const {
  if (deadline_ns_ == INT64_MAX) return false;
  double save_ns = 0;
  if (saver_)
    save_ns = longest_save_ns_ > 0 ? static_cast<double>(longest_save_ns_)
                                   : static_cast<double>(all_bytes_) / kFirstGuess * 1e9;
  const double step_ns = static_cast<double>(std::max(longest_step_ns_, now - boundary_ns_));
  return static_cast<double>(deadline_ns_ - now) < kMargin * (step_ns + save_ns);
}

bool Checkpointing::needs_result(const Votes& sum) const {
  const int64_t step = trainer_.steps_done();
  return step >= config_.train.train_iters || sum.end_run() || exits_here() ||
         (saver_ && step % config_.checkpoint.save_interval == 0);
}

bool Checkpointing::exits_here() const {
  const int64_t interval = config_.train.exit_interval, step = trainer_.steps_done();
  return interval > 0 && step % interval == 0 && step > resumed_step_;
}

bool Checkpointing::after_step(const Votes& sum) {
  if (sum.folder_lost > 0) leave_folder();
  const bool stop = sum.end_run() || exits_here(),
             last = !evaluation_due_ && trainer_.steps_done() >= config_.train.train_iters;
  pass_boundary();
  if (saver_) {
    conclude(saver_->advance(sum.save));
    if (stop || last) {
      conclude(finish_save());
      if (saved_step_ != trainer_.steps_done() || saved_as_due_ != evaluation_due_) {
        begin();
        conclude(finish_save());
      }
      if (saved_step_ != trainer_.steps_done())
        throw IoError(fmt::format("the last step could not be saved: {}", last_error_));
    } else if (trainer_.steps_done() % config_.checkpoint.save_interval == 0 && saved_step_ != trainer_.steps_done()) {
      save_due_step();
    }
  }
  boundary_ns_ = now_ns();  // a save is not part of a step
  if (last && !config_.checkpoint.mirror.empty()) await_mirror();
  if (const std::string problem = mirror_ ? mirror_->take_problem() : ""; !problem.empty()) note(problem);
  if (!stop || last) return !last;
  exit_code_ = saver_ ? 75 : kInterrupted;
  note(fmt::format("stopping after step {}, {}: {}", trainer_.steps_done(),
                   sum.stop_signal > 0 ? "as a signal asked"
                   : sum.end_run()     ? "before the time is up"
                                       : "as train.exit_interval says",
                   saver_ ? "it is saved; start again to resume (exit code 75)" : why_not_saved()));
  return false;
}

// In the meantime the ranks keep running collectives, so that none appears hung to the others.
void Checkpointing::await_mirror() {
  struct Vote {
    int64_t busy = 0, stop = 0;
  };
  Vote sum;
  do {
    const bool busy = mirror_ && !mirror_->wait(0.2);
    sum = trainer_.host().sum(Vote{busy, options_.stop_signal && options_.stop_signal() != 0});
  } while (sum.busy > 0 && sum.stop == 0);
}

void Checkpointing::pass_boundary() {
  const int64_t now = now_ns();
  longest_step_ns_ = std::max(longest_step_ns_, now - boundary_ns_);
  boundary_ns_ = now;
}

void Checkpointing::update_stop_texts(int64_t done, int64_t committed) {
  if (trainer_.host().rank() > 0) return;
  const std::lock_guard lock(stop_texts_);
  done_ = std::max(done_, done), committed_ = std::max(committed_, committed);
  const std::string lost =
      done_ == committed_ + 1 ? fmt::format("step {}", done_) : fmt::format("steps {} to {}", committed_ + 1, done_);
  set_stop_texts(saver_ ? "the run ends after this step and saves it; a second signal ends it immediately"
                        : fmt::format("the run ends after this {}; {}", config_.train.skip_train ? "batch" : "step",
                                      why_not_saved()),
                 "the run ends immediately; lost: " +
                     (done_ > committed_ ? lost + ", done since the last checkpoint" : "the step in progress"));
}

std::string Checkpointing::why_not_saved() const {
  return fmt::format("nothing is saved, as {}",
                     config_.train.skip_train ? "train.skip_train is true" : "checkpoint.save_interval is 0");
}

// ---- loss of the run's directory

void Checkpointing::leave_folder() {
  HostWorld& host = trainer_.host();
  const std::string why = host.broadcast(options_.folder ? options_.folder->problem() : std::string());
  if (host.broadcast(int64_t{options_.folder && options_.folder->taken_over()})) throw ConfigError(why);
  throw ConfigError(fmt::format("{}; {}", why, save_beside()));
}

// Returns where the state was saved, or why it was not. Collective.
std::string Checkpointing::save_beside() {
  if (!saver_) return why_not_saved();
  HostWorld& host = trainer_.host();
  finish_save();  // to the old directory: this save fails, or is lost with it
  std::string run_dir = config_.train.run_dir;
  while (run_dir.size() > 1 && run_dir.back() == '/') run_dir.pop_back();
  const CheckpointStore store(checkpoints_folder(run_dir + ".saved-" + random_run_name(host)),
                              Disk(options_.disk_fault));
  saver_->move_to(store);
  saver_->begin(train_state());
  const SaveEvent event = finish_save();
  const std::string path = store.path_of(trainer_.steps_done());
  const std::string problem = host.first_problem(saver_->error());
  return event == SaveEvent::committed ? fmt::format("step {} is saved: --resume {}", trainer_.steps_done(), path)
                                       : fmt::format("{} could not be saved: {}", path, problem);
}

void Checkpointing::save_due_step() {
  if (!trainer_.numbers_ok()) {
    note(fmt::format("step {} is not saved: its loss or gradient was bad, so it was skipped", trainer_.steps_done()));
  } else if (const int64_t retained = config_.checkpoint.save_retain_interval;
             saver_->saving() && (retained == 0 || trainer_.steps_done() % retained != 0)) {
    note(
        fmt::format("step {} is not saved: step {} is still being written; expected a longer "
                    "checkpoint.save_interval for this disk",
                    trainer_.steps_done(), saver_->step()));
  } else {
    conclude(finish_save());  // an earlier step's save, for which a step to be retained waits
    begin();
    if (!config_.checkpoint.async_save) conclude(finish_save());
  }
}

void Checkpointing::begin() {
  // A corrupted replica must not become the latest checkpoint.
  if (config_.train.check_weight_hash_across_dp_replicas_interval > 0) trainer_.check_replicas();
  begun_ns_ = now_ns();
  const std::string folder = checkpoints_folder(config_.train.run_dir);
  if (longest_save_ns_ > 0 && !file_exists(folder + "/latest"))
    note(folder + ": was removed or emptied; it is created again, without the earlier checkpoints");
  if (options_.faults) options_.faults->begin(StepPhase::save, trainer_.steps_done());
  if (reporter_) reporter_->flush();
  saver_->begin(train_state());
}

SaveEvent Checkpointing::finish_save() {
  SaveEvent event = SaveEvent::none;
  while (saver_->saving()) {
    saver_->wait();
    event = saver_->advance(trainer_.host().sum(saver_->vote()));
  }
  return event;
}

void Checkpointing::conclude(SaveEvent event) {
  if (event == SaveEvent::none) return;
  const int64_t took = now_ns() - begun_ns_;
  if (event == SaveEvent::committed) {
    failures_ = 0;
    saved_step_ = saver_->step();
    saved_as_due_ = evaluation_due_;
    longest_save_ns_ = std::max(longest_save_ns_, took);
    if (reporter_) {
      reporter_->saved(
          {.step = saver_->step(),
           .bytes = all_bytes_,
           .stall_seconds = config_.checkpoint.async_save ? saver_->stall_seconds() : static_cast<double>(took) * 1e-9,
           .seconds = static_cast<double>(took) * 1e-9});
      reporter_->look_for_slow_disks(saver_->write_ns());
    }
    if (!saver_->not_removed().empty())
      note(fmt::format("step {} is saved, but old checkpoints could not be removed: {}", saver_->step(),
                       saver_->not_removed()));
    return;
  }
  last_error_ = trainer_.host().first_problem(saver_->error());
  if (++failures_ >= config_.checkpoint.max_failed_saves)
    throw IoError(
        fmt::format("{} saves have failed in a row (checkpoint.max_failed_saves): {}", failures_, last_error_));
  note(fmt::format("step {} could not be saved ({} of at most {} failures in a row): {}", saver_->step(), failures_,
                   config_.checkpoint.max_failed_saves, last_error_));
}

}  // namespace trivet
