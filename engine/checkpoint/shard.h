// Shards: the files of a checkpoint that hold tensors, written by one rank and read by any.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/disk.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/state_tensors.h"
#include "kernels/base/device.h"

namespace trivet {

// Writes `tensors`, whose data are in host memory, to the file `name` of `directory`, durable. Returns its description
// for the manifest; the hashes of the pieces are taken before they are written.
CheckpointFile write_shard(const Disk& disk, const std::string& directory, const std::string& name,
                           std::span<const StateTensor> tensors);

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
// wants, and no byte is used that does not match its hash. The device's stream is synchronised at the end. Throws
// DataError naming file, tensor, found and expected; then the tensors' contents are undefined.
void read_tensors(const OpenCheckpoint& checkpoint, std::span<const StateTensor> wanted, Device& device,
                  Stream& stream);

// Reads every file, and compares every hash and the shards' headers with the manifest. Calls progress(bytes read so
// far). Throws DataError at the first that differs.
void verify_checkpoint(const OpenCheckpoint& checkpoint, const std::function<void(int64_t bytes)>& progress);

}  // namespace trivet
