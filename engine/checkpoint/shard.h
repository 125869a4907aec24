// Shards: the files of a checkpoint that hold tensors, written by one rank and read by any.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/disk.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/state_tensors.h"
#include "engine/data/content_hash.h"
#include "kernels/base/device.h"

namespace trivet {

// Writes a shard, the file `name` of `directory`, piece by piece: whoever has not all of it in memory at once.
// `pieces`: names and slices; the writer fills in the rest. The hashes of a piece are taken before it is written.
class ShardWriter {
 public:
  ShardWriter(const Disk& disk, const std::string& directory, const std::string& name,
              std::vector<CheckpointPiece> pieces);
  void add(const void* data);                   // the next piece, whole, in host memory
  void add_block(std::span<const char> block);  // the next kBlockBytes of it, or its rest
  CheckpointFile finish();                      // makes the file durable; its description for the manifest

 private:
  void write(std::span<const char> bytes);

  CheckpointFile file_;
  std::optional<Disk::File> out_;
  ContentHash hash_;
  size_t next_ = 0;      // piece
  int64_t written_ = 0;  // bytes of it
};

// All of it at once: tensors in host memory.
CheckpointFile write_shard(const Disk& disk, const std::string& directory, const std::string& name,
                           std::span<const StateTensor> tensors);
// Tensors in memory of a device: while a block is written, the next one is copied, on a stream of the caller's.
CheckpointFile write_shard(const Disk& disk, const std::string& directory, const std::string& name,
                           std::span<const StateTensor> tensors, Device& device, Stream& stream);

// The files of a checkpoint that hold no tensors; manifest.json last. `manifest` names the shards, which are written.
void write_manifest(const Disk& disk, const std::string& directory, Manifest manifest, const TrainState& state,
                    const std::string& config);

// Opens a committed checkpoint: its manifest, its train state, and whether every file it names is there, with its size.
// A shard that it does not name is refused, too. Throws DataError, IoError.
struct OpenCheckpoint {
  std::string directory;
  Manifest manifest{};
  TrainState state{};
  std::string config{};  // text of its config.resolved.yaml
};
OpenCheckpoint open_checkpoint(const std::string& directory);

// Fills the tensors from the checkpoint, whatever layout has saved it: each rank reads the blocks that hold what it
// wants, with so many threads, and no byte is used that does not match its hash. Where the device's memory is not the
// host's, some tensors are read while those before are copied. The stream is synchronised. Throws DataError naming
// file, tensor, found and expected; then the tensors' contents are undefined.
void read_tensors(const OpenCheckpoint& checkpoint, std::span<const StateTensor> wanted, Device& device, Stream& stream,
                  int threads = 1);

// Reads every file, and compares every hash and the shards' headers with the manifest. Calls progress(bytes read so
// far). Throws DataError at the first that differs.
void verify_checkpoint(const OpenCheckpoint& checkpoint, const std::function<void(int64_t bytes)>& progress);

}  // namespace trivet
