// A committed checkpoint, opened: what it says of itself, and reading from it under any layout.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/state_tensors.h"
#include "kernels/base/device.h"

namespace trivet {

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
