#include "engine/checkpoint/saver.h"

#include <chrono>
#include <fmt/format.h>

#include "base/files.h"
#include "base/host_memory.h"
#include "engine/checkpoint/open_checkpoint.h"
#include "engine/checkpoint/shard.h"
#include "kernels/base/trace.h"

namespace trivet {
namespace {

std::string shard_name(int rank) { return fmt::format("rank-{:05d}.safetensors", rank); }
std::string description_name(int rank) { return fmt::format("rank-{:05d}.json", rank); }

}  // namespace

CheckpointSaver::CheckpointSaver(Options options, std::vector<StateTensor> tensors, Tensor snapshot, Device& device,
                                 Stream& compute)
    : options_(std::move(options)),
      live_(std::move(tensors)),
      written_(live_),
      copies_(static_cast<bool>(snapshot)),
      device_(device),
      compute_(compute),
      reached_(device.create_event()),
      reading_(snapshot || device.kind() == DeviceKind::cpu ? nullptr
                                                            : device.create_side_stream(StreamPriority::normal)) {
  for (StateTensor& tensor : written_) {
    if (copies_)
      tensor.data = Tensor{static_cast<std::byte*>(snapshot.data) + bytes_, DType::f32, {tensor.slice.count}};
    bytes_ += tensor.data.bytes();
  }
}

void CheckpointSaver::begin(const TrainState& state) {
  check(phase_ == Phase::idle, "a checkpoint is begun while another is being saved");
  const int64_t begun = now_ns();
  state_ = state;
  error_.clear();
  not_removed_.clear();
  temporary_ = options_.store.temporary_path_of(state.step, options_.run);
  if (copies_)
    for (size_t i = 0; i < live_.size(); ++i) device_.copy_to_host(live_[i].data, written_[i].data.data, compute_);
  compute_.record(*reached_);
  phase_ = Phase::writing;
  start([this] { write(); });
  stall_seconds_ = static_cast<double>(now_ns() - begun) * 1e-9;
}

void CheckpointSaver::write() {
  const Disk& disk = options_.store.disk();
  if (const std::string& folder = options_.store.folder(); !file_exists(folder))  // the folder was removed, or is new
    disk.make_directories(folder, parents_);
  disk.make_directories(temporary_, parents_);
  reached_->synchronize();
  const int64_t begun = now_ns();
  const std::string name = shard_name(options_.rank);
  const CheckpointFile file = write_shard(disk, temporary_, name, written_, device_, reading_.get());
  disk.write_file(temporary_ + "/" + description_name(options_.rank), to_json(file));
  write_ns_ = now_ns() - begun;
}

void CheckpointSaver::commit() {
  const Disk& disk = options_.store.disk();
  Manifest manifest{.step = state_.step, .run = options_.run, .layout = options_.layout};
  for (int rank = 0; rank < options_.ranks; ++rank) {
    const std::string path = temporary_ + "/" + description_name(rank);
    if (!file_exists(path))
      throw IoError(
          fmt::format("{}: rank {} has written it, but rank 0 does not see it: the checkpoint folder must "
                      "be on a file system that all hosts share",
                      path, rank));
    manifest.files.push_back(parse_checkpoint_file(read_small_file(path, Manifest::kMostBytes), path));
  }
  write_manifest(disk, temporary_, std::move(manifest), state_, options_.config);
  for (int rank = 0; rank < options_.ranks; ++rank) disk.remove_all(temporary_ + "/" + description_name(rank));
  open_checkpoint(temporary_);  // detects writes that the disk acknowledged but lost, if file sizes reveal them
  if (options_.before_commit) options_.before_commit();
  options_.store.commit(state_.step, temporary_);
  if (options_.committed) options_.committed(state_.step);
  // On NFS a folder with an open file cannot be removed. The save has succeeded regardless.
  try {
    options_.store.remove_old(state_.step, temporary_, options_.keep);
  } catch (const IoError& error) {
    not_removed_ = error.what();
  }
}

void CheckpointSaver::start(std::function<void()> job) {
  job_ = std::async(std::launch::async, [job = std::move(job)]() -> std::string {
    const MemoryPurpose purpose("saving a checkpoint");
    try {
      job();
      return {};
    } catch (const std::exception& error) {
      return error.what();
    }
  });
}

SaveVote CheckpointSaver::vote() {
  if (job_.valid()) {
    if (job_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return {.busy = 1};
    if (std::string error = job_.get(); !error.empty()) {
      if (error_.empty()) error_ = std::move(error);  // the first error is the cause
      failed_ = true;
    }
  }
  return {.busy = 0, .failed = failed_ ? 1 : 0};
}

SaveEvent CheckpointSaver::advance(const SaveVote& sum) {
  if (phase_ == Phase::idle || sum.busy > 0) return SaveEvent::none;
  const bool first = options_.rank == 0;
  failed_ = false;
  if (phase_ == Phase::discarding) {  // leftovers are removed at the next start
    phase_ = Phase::idle;
    return SaveEvent::failed;
  }
  if (sum.failed > 0) {
    phase_ = Phase::discarding;
    if (first) start([this] { options_.store.disk().remove_all(temporary_); });
    return SaveEvent::none;
  }
  if (phase_ == Phase::committing) {
    phase_ = Phase::idle;
    return SaveEvent::committed;
  }
  phase_ = Phase::committing;
  if (first) start([this] { commit(); });
  return SaveEvent::none;
}

}  // namespace trivet
