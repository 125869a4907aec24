#include "engine/checkpoint/open_checkpoint.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/content_hash.h"
#include "base/files.h"
#include "engine/checkpoint/shard.h"
#include "engine/checkpoint/staging_pair.h"

namespace trivet {
namespace {

constexpr int64_t kLargestManifest = int64_t{1} << 30, kLargestText = 1 << 20;

// The piece of a shard, of which whole blocks are read and compared with their hashes.
class PieceReader {
 public:
  PieceReader(const InputFile& file, const CheckpointPiece& piece) : file_(file), piece_(piece) {}

  // The bytes [begin, end) of the piece to `to`. Over all calls ascending, so that a block is read once.
  void read(int64_t begin, int64_t end, char* to) {
    while (begin < end) {
      const int64_t block = begin / Manifest::kBlockBytes, start = block * Manifest::kBlockBytes;
      const int64_t length = std::min(Manifest::kBlockBytes, piece_.bytes() - start);
      const int64_t n = std::min(end, start + length) - begin;
      if (n == length) {
        read_block(block, start, {to, static_cast<size_t>(length)});  // straight to where it belongs
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
    // The disk works on what comes while this is hashed.
    constexpr int64_t kAhead = 16 << 20;
    const int64_t wanted = std::min(start + kAhead, piece_.bytes());
    if (wanted - ahead_ >= kAhead / 2 || (ahead_ < wanted && wanted == piece_.bytes())) {
      const int64_t from = std::max(start, ahead_);
      file_.will_read(piece_.offset + from, wanted - from);
      ahead_ = wanted;
    }
    file_.read_at(piece_.offset + start, std::as_writable_bytes(to));
    const uint64_t found = hash_block(to), expected = piece_.block_hashes[static_cast<size_t>(block)];
    if (found != expected)
      throw DataError(
          fmt::format("{}: tensor {}: found the hash {:016x} of bytes {} to {}, expected {:016x}: the file "
                      "is damaged",
                      file_.path(), piece_.name, found, piece_.offset + start,
                      piece_.offset + start + static_cast<int64_t>(to.size()), expected));
  }

  const InputFile& file_;
  const CheckpointPiece& piece_;
  std::vector<char> buffer_;
  int64_t held_ = -1;
  int64_t ahead_ = 0;  // bytes of the piece, up to here, were asked for
};

// The files of a checkpoint, each opened when it is first needed. Of one thread.
class OpenFiles {
 public:
  explicit OpenFiles(const std::string& directory) : directory_(directory) {}
  const InputFile& operator[](const std::string& name) {
    std::unique_ptr<InputFile>& file = files_[name];
    if (!file) file = std::make_unique<InputFile>(directory_ + "/" + name);
    return *file;
  }

 private:
  const std::string& directory_;
  std::map<std::string, std::unique_ptr<InputFile>> files_;
};

// Which pieces a tensor is made of.
class StoredTensors {
 public:
  explicit StoredTensors(const OpenCheckpoint& checkpoint) : directory_(checkpoint.directory) {
    for (const CheckpointFile& file : checkpoint.manifest.files)
      for (const CheckpointPiece& piece : file.pieces) tensors_[piece.name].push_back({&file, &piece});
  }

  void read(const StateTensor& tensor, OpenFiles& files, char* to) const {
    const auto at = tensors_.find(tensor.name);
    if (at == tensors_.end()) throw DataError(fmt::format("{}: has no tensor {}", directory_, tensor.name));
    if (const Shape& shape = at->second.front().piece->slice.global; shape != tensor.slice.global)
      throw DataError(fmt::format("{}: tensor {}: found the shape {}, expected {}", directory_, tensor.name,
                                  to_string(shape), to_string(tensor.slice.global)));
    int64_t filled = 0;
    for (const Stored& from : at->second) {
      std::optional<PieceReader> reader;
      for_each_run(from.piece->slice, tensor.slice, [&](int64_t from_offset, int64_t to_offset, int64_t n) {
        if (!reader) reader.emplace(files[from.file->name], *from.piece);
        reader->read(4 * from_offset, 4 * (from_offset + n), to + 4 * to_offset);
        filled += n;
      });
    }
    if (filled != tensor.slice.count)
      throw DataError(fmt::format("{}: tensor {}: its pieces hold {} of the {} elements that this rank needs",
                                  directory_, tensor.name, filled, tensor.slice.count));
  }

 private:
  struct Stored {
    const CheckpointFile* file;
    const CheckpointPiece* piece;
  };
  const std::string& directory_;
  std::map<std::string_view, std::vector<Stored>> tensors_;
};

int64_t size_of_file(const std::string& path, const std::string& source) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) throw DataError(fmt::format("{}: {}, but {} names it", path, error.message(), source));
  return static_cast<int64_t>(size);
}

std::string read_checked(const OpenCheckpoint& checkpoint, const std::string& name) {
  const auto& files = checkpoint.manifest.files;
  const auto file = std::find_if(files.begin(), files.end(), [&](const auto& f) { return f.name == name; });
  if (file == files.end()) throw DataError(checkpoint.directory + "/manifest.json names no " + name);
  const std::string path = checkpoint.directory + "/" + name;
  std::string text = read_small_file(path, kLargestText);
  if (const std::string found = content_hash(text); found != file->hash)
    throw DataError(fmt::format("{}: found the hash {}, expected {}: it was changed", path, found, file->hash));
  return text;
}

}  // namespace

OpenCheckpoint open_checkpoint(const std::string& directory) {
  OpenCheckpoint checkpoint{.directory = directory};
  const std::string path = directory + "/manifest.json";
  if (!file_exists(directory)) throw DataError(directory + ": there is no such checkpoint");
  if (!file_exists(path)) throw DataError(path + ": not found: this is no committed checkpoint");
  checkpoint.manifest = parse_manifest(read_small_file(path, kLargestManifest), path);
  for (const CheckpointFile& file : checkpoint.manifest.files) {
    const int64_t bytes = size_of_file(directory + "/" + file.name, path);
    if (bytes != file.bytes)
      throw DataError(fmt::format("{}/{}: has {} bytes, expected {}", directory, file.name, bytes, file.bytes));
  }
  for (const std::string& name : list_directory(directory)) {
    const auto& files = checkpoint.manifest.files;
    if (name.ends_with(".safetensors") &&
        std::none_of(files.begin(), files.end(), [&](const auto& file) { return file.name == name; }))
      throw DataError(fmt::format("{}/{}: a shard that {} does not name", directory, name, path));
  }
  checkpoint.state = parse_train_state(read_checked(checkpoint, "train_state.json"), directory + "/train_state.json");
  checkpoint.config = read_checked(checkpoint, "config.resolved.yaml");
  if (checkpoint.state.step != checkpoint.manifest.step)
    throw DataError(fmt::format("{}/train_state.json: step: found {}, expected the manifest's {}", directory,
                                checkpoint.state.step, checkpoint.manifest.step));
  return checkpoint;
}

namespace {

// Reads tensors, number i to to(i). Each thread takes the next one. The first error counts, and ends the others' work.
template <class To>
void read_to_host(const StoredTensors& stored, const std::string& directory, std::span<const StateTensor> wanted,
                  int threads, const To& to) {
  std::atomic<size_t> next = 0;
  std::exception_ptr error;
  std::mutex mutex;
  const auto work = [&] {
    OpenFiles files(directory);
    try {
      for (size_t i; (i = next++) < wanted.size();) stored.read(wanted[i], files, to(i));
    } catch (...) {
      next = wanted.size();
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace

void read_tensors(const OpenCheckpoint& checkpoint, std::span<const StateTensor> wanted, Device& device, Stream& stream,
                  int threads) {
  const StoredTensors stored(checkpoint);
  if (device.kind() == DeviceKind::cpu) {
    stream.synchronize();
    return read_to_host(stored, checkpoint.directory, wanted, threads,
                        [&](size_t i) { return static_cast<char*>(wanted[i].data.data); });
  }
  constexpr int64_t kStaged = 64 << 20;  // as many tensors at a time as this holds, or one
  int64_t largest = 0, all = 0;
  for (const StateTensor& tensor : wanted) {
    largest = std::max(largest, tensor.data.bytes());
    all += tensor.data.bytes();
  }
  StagingPair staging(device, stream, std::max({largest, std::min(all, kStaged), int64_t{1}}));
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
    read_to_host(stored, checkpoint.directory, some, threads, [&](size_t i) { return buffer + places[i]; });
    for (size_t i = 0; i < some.size(); ++i) device.copy_to_device(buffer + places[i], some[i].data, stream);
    staging.copies_queued(turn);
  }
  stream.synchronize();
}

void verify_checkpoint(const OpenCheckpoint& checkpoint, const std::function<void(int64_t bytes)>& progress) {
  int64_t done = 0;
  std::vector<char> buffer(8 << 20);
  for (const CheckpointFile& expected : checkpoint.manifest.files) {
    const InputFile file(checkpoint.directory + "/" + expected.name);
    ContentHash hash;
    for (int64_t at = 0; at < file.size();) {
      const auto n = std::min(static_cast<int64_t>(buffer.size()), file.size() - at);
      const auto part = std::span(buffer).first(static_cast<size_t>(n));
      file.read_at(at, std::as_writable_bytes(part));
      hash.add(part.data(), part.size());
      at += n;
      progress(done += n);
    }
    for (const CheckpointPiece& piece : expected.pieces) {
      PieceReader reader(file, piece);
      for (int64_t at = 0; at < piece.bytes(); at += Manifest::kBlockBytes)
        reader.read(at, std::min(at + Manifest::kBlockBytes, piece.bytes()), buffer.data());
    }
    if (hash.hex() != expected.hash)
      throw DataError(fmt::format("{}: found the hash {}, expected {}", file.path(), hash.hex(), expected.hash));
    if (expected.pieces.empty()) continue;
    const SafeTensors found = read_safetensors(file), meant = shard_header(expected);
    if (found.tensors != meant.tensors || found.metadata != meant.metadata)
      throw DataError(file.path() + ": its header does not say what the manifest says");
  }
}

}  // namespace trivet
