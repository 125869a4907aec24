#include "engine/checkpoint/open_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/content_hash.h"
#include "base/files.h"
#include "base/parallel_for.h"
#include "engine/checkpoint/shard.h"
#include "engine/checkpoint/staging_pair.h"

namespace trivet {
namespace {

constexpr int64_t kLargestText = 1 << 20;

// Reads a slice of a shard in whole blocks, and checks each block against its hash.
class SliceReader {
 public:
  SliceReader(const InputFile& file, const StoredSlice& slice) : file_(file), slice_(slice) {}

  // Reads bytes [begin, end) of the slice into `to`. Ranges must ascend from call to call, so each block is read once.
  void read(int64_t begin, int64_t end, char* to) {
    while (begin < end) {
      const int64_t block = begin / Manifest::kBlockBytes, start = block * Manifest::kBlockBytes;
      const int64_t length = std::min(Manifest::kBlockBytes, slice_.bytes() - start);
      const int64_t n = std::min(end, start + length) - begin;
      if (n == length) {
        read_block(block, start, {to, static_cast<size_t>(length)});  // directly into its destination
      } else {
        if (block != held_) {
          buffer_.resize(Manifest::kBlockBytes);
          held_ = -1;
          read_block(block, start, std::span(buffer_).first(static_cast<size_t>(length)));
          held_ = block;
        }
        std::memcpy(to, buffer_.data() + (begin - start), static_cast<size_t>(n));
      }
      begin += n;
      to += n;
    }
  }

 private:
  void read_block(int64_t block, int64_t start, std::span<char> to) {
    // Read-ahead runs while this block is hashed.
    constexpr int64_t kAhead = 16 << 20;
    const int64_t wanted = std::min(start + kAhead, slice_.bytes());
    if (wanted - ahead_ >= kAhead / 2 || (ahead_ < wanted && wanted == slice_.bytes())) {
      const int64_t from = std::max(start, ahead_);
      file_.will_read(slice_.offset + from, wanted - from);
      ahead_ = wanted;
    }
    file_.read_at(slice_.offset + start, std::as_writable_bytes(to));
    const uint64_t found = hash_block(to), expected = slice_.block_hashes[static_cast<size_t>(block)];
    if (found != expected)
      throw DataError(
          fmt::format("{}: tensor {}: found the hash {:016x} of bytes {} to {}, expected {:016x}: the file "
                      "is damaged",
                      file_.path(), slice_.name, found, slice_.offset + start,
                      slice_.offset + start + static_cast<int64_t>(to.size()), expected));
  }

  const InputFile& file_;
  const StoredSlice& slice_;
  std::vector<char> buffer_;
  int64_t held_ = -1;
  int64_t ahead_ = 0;  // end of the bytes that the kernel was told to read ahead
};

// Compares byte for byte: the slices determine a shard's header.
void check_header(const InputFile& file, const CheckpointFile& described) {
  const std::string expected = safetensors_header(shard_header(described));
  std::string found(expected.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(found)));
  if (found != expected)
    throw DataError(file.path() + ": its header does not agree with the manifest: the file is damaged");
}

// The tensors of an open checkpoint, readable from any thread.
class StoredTensors {
 public:
  StoredTensors(const OpenCheckpoint& checkpoint, Weights weights)
      : directory_(checkpoint.directory), weights_(weights), tensors_(tensors_of(checkpoint.manifest)) {}

  void read(const StateTensor& tensor, char* to) {
    const auto at = tensors_.find(tensor.name);
    if (at == tensors_.end()) throw DataError(fmt::format("{}: has no tensor {}", directory_, tensor.name));
    if (const Shape& shape = at->second.front().slice->slice.global; shape != tensor.slice.global)
      throw DataError(fmt::format("{}: tensor {}: found the shape {}, expected {}", directory_, tensor.name,
                                  to_string(shape), to_string(tensor.slice.global)));
    int64_t filled = 0;
    for (const StoredPlace& from : at->second) {
      std::optional<SliceReader> reader;
      for_each_run(from.slice->slice, tensor.slice, [&](int64_t from_offset, int64_t to_offset, int64_t n) {
        if (!reader) reader.emplace(open(*from.file), *from.slice);
        reader->read(4 * from_offset, 4 * (from_offset + n), to + 4 * to_offset);
        filled += n;
      });
    }
    if (filled != tensor.slice.count)
      throw DataError(fmt::format("{}: tensor {}: its slices hold {} of the {} elements that this rank needs",
                                  directory_, tensor.name, filled, tensor.slice.count));
    if (weights_ == Weights::finite)
      expect_finite({reinterpret_cast<const float*>(to), static_cast<size_t>(tensor.slice.count)},
                    fmt::format("{}: tensor {}", directory_, tensor.name));
  }

 private:
  const InputFile& open(const CheckpointFile& described) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<InputFile>& file = files_[described.name];
    if (file) return *file;
    auto opened = std::make_unique<InputFile>(directory_ + "/" + described.name);
    check_header(*opened, described);
    return *(file = std::move(opened));
  }

  const std::string& directory_;
  const Weights weights_;
  const std::map<std::string_view, std::vector<StoredPlace>> tensors_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<InputFile>> files_;  // opened on first use; guarded by mutex_
};

int64_t size_of_file(const std::string& path, const std::string& source) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) throw DataError(fmt::format("{}: {}, but {} lists it", path, error.message(), source));
  return static_cast<int64_t>(size);
}

std::string read_checked(const OpenCheckpoint& checkpoint, const std::string& name) {
  const auto& files = checkpoint.manifest.files;
  const auto file = std::find_if(files.begin(), files.end(), [&](const auto& f) { return f.name == name; });
  if (file == files.end()) throw DataError(checkpoint.directory + "/manifest.json does not list " + name);
  const std::string path = checkpoint.directory + "/" + name;
  std::string text = read_small_file(path, kLargestText);
  if (const std::string found = content_hash(text); found != file->hash)
    throw DataError(fmt::format("{}: found the hash {}, expected {}: the file was modified", path, found, file->hash));
  return text;
}

}  // namespace

OpenCheckpoint open_checkpoint(const std::string& directory) {
  OpenCheckpoint checkpoint{.directory = directory};
  const std::string path = directory + "/manifest.json";
  if (!file_exists(directory)) throw DataError(directory + ": there is no such checkpoint");
  if (!file_exists(path)) throw DataError(path + ": not found: this is not a committed checkpoint");
  checkpoint.manifest = parse_manifest(read_small_file(path, Manifest::kMostBytes), path);
  for (const CheckpointFile& file : checkpoint.manifest.files) {
    const int64_t bytes = size_of_file(directory + "/" + file.name, path);
    if (bytes != file.bytes)
      throw DataError(fmt::format("{}/{}: has {} bytes, expected {}", directory, file.name, bytes, file.bytes));
  }
  for (const std::string& name : list_directory(directory)) {
    const auto& files = checkpoint.manifest.files;
    if (name.ends_with(".safetensors") &&
        std::none_of(files.begin(), files.end(), [&](const auto& file) { return file.name == name; }))
      throw DataError(fmt::format("{}/{}: a shard that {} does not list", directory, name, path));
  }
  checkpoint.state = parse_train_state(read_checked(checkpoint, "train_state.json"), directory + "/train_state.json");
  checkpoint.config = read_checked(checkpoint, "config.resolved.yaml");
  if (checkpoint.state.step != checkpoint.manifest.step)
    throw DataError(fmt::format("{}/train_state.json: step: found {}, expected the manifest's {}", directory,
                                checkpoint.state.step, checkpoint.manifest.step));
  return checkpoint;
}

std::string fingerprint_of(const OpenCheckpoint& checkpoint) {
  return fmt::format("step {} of run {}, manifest {}", checkpoint.state.step, checkpoint.manifest.run,
                     content_hash(to_json(checkpoint.manifest)));
}

void read_tensors(const OpenCheckpoint& checkpoint, std::span<const StateTensor> wanted, Device& device, Stream& stream,
                  int threads, Weights weights, int64_t staged_bytes) {
  StoredTensors stored(checkpoint, weights);
  const auto workers = static_cast<size_t>(threads);
  if (device.kind() == DeviceKind::cpu) {
    stream.synchronize();
    return parallel_for(wanted.size(), workers,
                        [&](size_t i) { stored.read(wanted[i], static_cast<char*>(wanted[i].data.data)); });
  }
  int64_t largest = 0, all = 0;
  for (const StateTensor& tensor : wanted) {
    largest = std::max(largest, tensor.data.bytes());
    all += tensor.data.bytes();
  }
  StagingPair staging(device, stream, std::max({largest, std::min(all, staged_bytes), int64_t{1}}));
  for (size_t turn = 0; !wanted.empty(); ++turn) {
    std::vector<int64_t> places;
    int64_t bytes = 0;
    for (; places.size() < wanted.size(); bytes += wanted[places.size() - 1].data.bytes()) {
      if (bytes + wanted[places.size()].data.bytes() > staging.bytes()) break;
      places.push_back(bytes);
    }
    const auto some = wanted.first(places.size());
    wanted = wanted.subspan(places.size());
    char* const buffer = staging.wait(turn);
    parallel_for(some.size(), workers, [&](size_t i) { stored.read(some[i], buffer + places[i]); });
    for (size_t i = 0; i < some.size(); ++i) device.copy_to_device(buffer + places[i], some[i].data, stream);
    staging.copies_queued(turn);
  }
  stream.synchronize();  // throws if a copy failed, which the staging buffers' destructor cannot do
}

std::vector<float> read_tensor(const OpenCheckpoint& checkpoint, const std::string& name, const Shape& shape,
                               Weights weights) {
  const StateTensor whole{name, whole_slice(shape), {}};
  std::vector<float> values(static_cast<size_t>(whole.slice.count));
  StoredTensors(checkpoint, weights).read(whole, reinterpret_cast<char*>(values.data()));
  return values;
}

void verify_checkpoint(const OpenCheckpoint& checkpoint, const std::function<void(int64_t bytes)>& progress) {
  int64_t done = 0;
  std::vector<char> buffer(Manifest::kBlockBytes);
  for (const CheckpointFile& expected : checkpoint.manifest.files) {
    const InputFile file(checkpoint.directory + "/" + expected.name);
    const std::string hash = content_hash(file, [&](int64_t bytes) { progress(done + bytes); });
    done += file.size();
    for (const StoredSlice& slice : expected.slices) {
      SliceReader reader(file, slice);
      for (int64_t at = 0; at < slice.bytes(); at += Manifest::kBlockBytes)
        reader.read(at, std::min(at + Manifest::kBlockBytes, slice.bytes()), buffer.data());
    }
    if (hash != expected.hash)
      throw DataError(fmt::format("{}: found the hash {}, expected {}", file.path(), hash, expected.hash));
    if (!expected.slices.empty()) check_header(file, expected);
  }
}

}  // namespace trivet
