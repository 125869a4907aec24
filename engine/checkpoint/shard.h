// Writes a checkpoint's files. Shards, one per rank, hold the tensors; open_checkpoint.h reads them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/content_hash.h"
#include "engine/checkpoint/disk.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/state_tensors.h"
#include "kernels/base/device.h"

namespace trivet {

SafeTensors shard_header(const CheckpointFile& file);

// Writes a shard to the file `name` in `directory`, one slice at a time. `slices`: names and elements; the writer fills
// in the rest. Each block is hashed in memory before it is written.
class ShardWriter {
 public:
  ShardWriter(const Disk& disk, const std::string& directory, const std::string& name, std::vector<StoredSlice> slices);
  void add(const void* data);                   // the whole next slice, in host memory
  void add_block(std::span<const char> block);  // the slice's next kBlockBytes, or its rest
  CheckpointFile finish();                      // makes the file durable; returns its description for the manifest

 private:
  void write(std::span<const char> bytes);

  CheckpointFile file_;
  std::optional<Disk::File> out_;
  ContentHash hash_;
  size_t next_ = 0;      // index of the current slice
  int64_t written_ = 0;  // bytes of the current slice
};

// Writes a complete shard. copies: the stream that copies the next block from the device while the current one is
// written; null: the tensors are in host memory.
CheckpointFile write_shard(const Disk& disk, const std::string& directory, const std::string& name,
                           std::span<const StateTensor> tensors, Device& device, Stream* copies);

// Writes the files that hold no tensors, manifest.json last. `manifest` lists the shards, which must exist already.
void write_manifest(const Disk& disk, const std::string& directory, Manifest manifest, const TrainState& state,
                    const std::string& config);

}  // namespace trivet
