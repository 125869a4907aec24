#include "engine/checkpoint/store.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <unistd.h>

#include "base/check.h"
#include "base/files.h"
#include "base/host.h"
#include "base/sink_queue.h"
#include "base/utf8.h"
#include "engine/checkpoint/manifest.h"

namespace trivet {
namespace {

constexpr std::string_view kPrefix = "step-", kTemporary = ".tmp-";
constexpr const char *kReplaced = "-old", *kDoomed = ".tmp-old";

std::string name_of_step(int64_t step) { return fmt::format("{}{:08d}", kPrefix, step); }

}  // namespace

std::optional<int64_t> step_of_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return {};
  const std::string_view digits = name.substr(kPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc{} || end != digits.data() + digits.size() || step < 0 || name != name_of_step(step)) return {};
  return step;
}

std::string CheckpointStore::path_of(int64_t step) const { return folder_ + "/" + name_of_step(step); }

std::string CheckpointStore::temporary_path_of(int64_t step, const std::string& run) const {
  return fmt::format("{}{}{}", path_of(step), kTemporary, run);
}

std::vector<int64_t> CheckpointStore::steps() const {
  std::vector<int64_t> steps;
  if (!file_exists(folder_) && errno == ENOENT) return steps;
  for (const std::string& name : list_directory(folder_))
    if (const auto step = step_of_name(name)) steps.push_back(*step);
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::optional<int64_t> CheckpointStore::latest(std::string* problem) const {
  const std::string path = folder_ + "/latest";
  if (!file_exists(path)) return {};
  std::string why;
  try {
    std::string name = read_small_file(path, 100);
    if (name.ends_with('\n')) name.pop_back();
    if (const auto step = step_of_name(name); step && file_exists(path_of(*step))) return step;
    why = fmt::format("{} names \"{}\", which is not a checkpoint in that folder", path, printable(name));
  } catch (const DataError& error) {  // not a regular file, or too long to name a step
    why = error.what();
  }
  if (problem) *problem = why;
  return {};
}

std::string CheckpointStore::latest_problem() const {
  std::string problem;
  latest(&problem);
  const std::vector<std::string> found = paths();
  return problem.empty() || found.empty() ? "" : fmt::format("{}; the newest is {}", problem, found.front());
}

std::vector<std::string> CheckpointStore::paths() const {
  std::vector<int64_t> ordered = steps();
  if (const auto newest = latest())
    std::stable_partition(ordered.begin(), ordered.end(), [&](int64_t step) { return step <= *newest; });
  std::vector<std::string> paths;
  for (const int64_t step : ordered) paths.push_back(path_of(step));
  return paths;
}

void warn_on_stderr(const std::string& warning) {
  const std::string line = "trivet: " + warning + "\n";
  add_to_log(line);
  write_stderr(line);
}

std::vector<std::string> find_checkpoints(std::string path, const std::function<void(const std::string&)>& warn) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (!file_exists(path)) {
    if (errno == ENOENT) throw ConfigError(path + ": there is no such file or directory");
    throw IoError(fmt::format("{}: cannot be found: {}", path, std::strerror(errno)));
  }
  if (!std::filesystem::is_directory(path)) throw DataError(path + ": is a file, expected a checkpoint directory");
  if (file_exists(path + "/manifest.json")) return {path};
  for (const std::string& folder : {path, path + "/checkpoints"})
    if (auto found = CheckpointStore(folder).paths(); !found.empty()) {
      if (const std::string problem = CheckpointStore(folder).latest_problem(); warn && !problem.empty()) warn(problem);
      return found;
    }
  throw DataError(path + ": not a checkpoint (there is no manifest.json), nor a folder or run with checkpoints");
}

std::string CheckpointStore::prepare() const {
  disk_.make_directories(folder_, Disk::Parents::expected);
  const std::vector<std::string> names = list_directory(folder_);
  if (access(folder_.c_str(), W_OK) != 0)
    throw IoError(fmt::format("{}: cannot be written to: {}", folder_, std::strerror(errno)));
  if (std::filesystem::is_directory(std::filesystem::symlink_status(folder_ + "/latest")))
    throw IoError(folder_ + "/latest: is a directory, expected a file: remove it");
  std::string problem;
  for (const std::string& name : names) {
    const bool of_step = name.starts_with(kPrefix) && name.find(kTemporary) != std::string::npos;
    if (!of_step && name != "latest.tmp") continue;
    try {
      disk_.remove_all(folder_ + "/" + name);
    } catch (const IoError& error) {
      problem = error.what();
    }
  }
  return problem;
}

void CheckpointStore::commit(int64_t step, const std::string& temporary) const {
  const std::string path = path_of(step);
  disk_.sync_directory(temporary);
  // A run resumed from an earlier step replaces steps saved earlier, atomically if the file system can
  // exchange names; otherwise, for a moment, neither the old nor the new one exists.
  if (!file_exists(path)) {
    disk_.rename(temporary, path);
  } else if (!disk_.exchange(temporary, path)) {
    disk_.rename(path, temporary + kReplaced);
    disk_.rename(temporary, path);
  }
  disk_.sync_directory(folder_);
  disk_.write_file(folder_ + "/latest.tmp", name_of_step(step) + "\n");
  disk_.rename(folder_ + "/latest.tmp", folder_ + "/latest");
  disk_.sync_directory(folder_);
}

// Considers only steps with a validation loss; at equal losses the newer step is better.
std::vector<int64_t> CheckpointStore::with_lowest_losses(std::vector<int64_t> steps, int64_t most) const {
  std::map<int64_t, double> losses;
  for (const int64_t step : steps) try {
      const std::string path = path_of(step) + "/train_state.json";
      const TrainState state = parse_train_state(read_small_file(path, Manifest::kMostBytes), path);
      if (state.validation_loss) losses[step] = *state.validation_loss;
    } catch (const Error&) {  // a damaged checkpoint is not among the best
    }
  std::erase_if(steps, [&](int64_t s) { return !losses.contains(s); });
  std::ranges::sort(steps, {}, [&](int64_t s) { return std::pair(losses[s], -s); });
  steps.resize(std::min(steps.size(), static_cast<size_t>(most)));
  return steps;
}

void CheckpointStore::remove_old(int64_t step, const std::string& temporary, const Retention& keep) const {
  for (const std::string& replaced : {temporary, temporary + kReplaced})
    if (file_exists(replaced)) disk_.remove_all(replaced);
  if (keep.last == 0) return;
  // Steps beyond this one belong to an abandoned run and are not counted.
  std::vector<int64_t> old = steps();
  std::erase_if(old, [&](int64_t s) { return s > step; });
  const std::vector<int64_t> best = keep.best > 0 ? with_lowest_losses(old, keep.best) : std::vector<int64_t>();
  old.erase(old.begin(), old.begin() + std::min(std::ssize(old), keep.last));
  std::erase_if(old, [&](int64_t s) {
    return (keep.interval > 0 && s % keep.interval == 0) || std::ranges::find(best, s) != best.end();
  });
  // A failed removal does not prevent the others.
  std::string problem;
  const auto attempt = [&](const auto& remove) {
    try {
      remove();
    } catch (const IoError& error) {
      if (problem.empty()) problem = error.what();
    }
  };
  // Rename first: a half-removed checkpoint must not look complete.
  for (const int64_t s : old) attempt([&] { disk_.rename(path_of(s), path_of(s) + kDoomed); });
  for (const std::string& name : list_directory(folder_))
    if (name.starts_with(kPrefix) && name.ends_with(kDoomed)) attempt([&] { disk_.remove_all(folder_ + "/" + name); });
  if (!problem.empty()) throw IoError(problem);
}

}  // namespace trivet
