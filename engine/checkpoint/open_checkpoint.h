// A committed checkpoint, opened for reading under any layout.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/piece.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/state_tensors.h"
#include "kernels/base/device.h"

namespace trivet {

// Reads the manifest and the train state, and checks that the listed files exist with the listed sizes and that there
// are no other shards. Throws DataError, IoError.
struct OpenCheckpoint {
  std::string directory;
  Manifest manifest{};
  TrainState state{};
  std::string config{};  // text of its config.resolved.yaml
};
OpenCheckpoint open_checkpoint(const std::string& directory);
std::string fingerprint_of(const OpenCheckpoint& checkpoint);  // from step, run and all files' hashes

// Bytes staged at a time on the way to a GPU; a larger tensor is staged alone. Tests pass fewer.
inline constexpr int64_t kStagedBytes = piece(64 << 20, 1 << 12);

// Fills the tensors from a checkpoint of any layout: `threads` threads read the blocks that hold them and check each
// block's hash. On a GPU, reading overlaps the copies of earlier tensors. Synchronises the stream. Throws DataError
// naming file, tensor, and the found and expected values, also for a non-finite value unless Weights::any; the tensors'
// contents are then undefined.
enum class Weights { finite, any };
void read_tensors(const OpenCheckpoint& checkpoint, std::span<const StateTensor> wanted, Device& device, Stream& stream,
                  int threads = 1, Weights weights = Weights::finite, int64_t staged_bytes = kStagedBytes);

// Reads a whole tensor of the checkpoint to the host. Throws DataError or IoError that names the file.
std::vector<float> read_tensor(const OpenCheckpoint& checkpoint, const std::string& name, const Shape& shape,
                               Weights weights = Weights::finite);

// Compares every hash and the shards' headers with the manifest. Calls progress(bytes hashed so far). Throws DataError
// at the first difference.
void verify_checkpoint(const OpenCheckpoint& checkpoint, const std::function<void(int64_t bytes)>& progress);

}  // namespace trivet
