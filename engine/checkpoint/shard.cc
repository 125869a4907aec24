#include "engine/checkpoint/shard.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/staging_pair.h"

namespace trivet {
namespace {

std::vector<int64_t> stored_shape(const Slice& slice) {
  if (!slice.whole_box()) return {slice.count};
  if (slice.global.rank == 1) return {slice.cols};
  return {slice.rows, slice.cols};
}

}  // namespace

SafeTensors shard_header(const CheckpointFile& file) {
  SafeTensors content;
  nlohmann::json slices;
  for (const StoredSlice& stored : file.slices) {
    const int64_t begin = content.data_bytes();
    content.tensors.push_back({stored.name, "F32", stored_shape(stored.slice), begin, begin + stored.bytes()});
    slices[stored.name] = to_value(stored.slice);
  }
  content.metadata = {{"format", "trivet checkpoint"}, {"slices", slices.dump()}};
  return content;
}

ShardWriter::ShardWriter(const Disk& disk, const std::string& directory, const std::string& name,
                         std::vector<StoredSlice> slices)
    : file_{.name = name, .slices = std::move(slices)} {
  const std::string header = safetensors_header(shard_header(file_));
  file_.bytes = static_cast<int64_t>(header.size());
  for (StoredSlice& stored : file_.slices) {
    stored.offset = file_.bytes;
    file_.bytes += stored.bytes();
  }
  out_.emplace(disk, directory + "/" + name, file_.bytes);
  write(header);
}

void ShardWriter::write(std::span<const char> bytes) {
  hash_.add(bytes.data(), bytes.size());
  out_->write(bytes);
}

void ShardWriter::add(const void* data) {
  const int64_t bytes = file_.slices.at(next_).bytes();
  if (bytes == 0) ++next_;
  // One block at a time, so that memory is read once: hashed for the manifest, then for the file, then written.
  for (int64_t at = 0; at < bytes; at += Manifest::kBlockBytes)
    add_block({static_cast<const char*>(data) + at, static_cast<size_t>(std::min(Manifest::kBlockBytes, bytes - at))});
}

void ShardWriter::add_block(std::span<const char> block) {
  StoredSlice& stored = file_.slices.at(next_);
  const auto bytes = static_cast<int64_t>(block.size());
  check(bytes == std::min(Manifest::kBlockBytes, stored.bytes() - written_), "a shard is given half a block");
  stored.block_hashes.push_back(hash_block(block));
  write(block);
  written_ += bytes;
  if (written_ < stored.bytes()) return;
  written_ = 0;
  ++next_;
}

CheckpointFile ShardWriter::finish() {
  check(next_ == file_.slices.size(), "a shard ends before its last slice");
  out_->sync();
  file_.hash = hash_.hex();
  return std::move(file_);
}

CheckpointFile write_shard(const Disk& disk, const std::string& directory, const std::string& name,
                           std::span<const StateTensor> tensors, Device& device, Stream* copies) {
  constexpr int64_t kBlock = Manifest::kBlockBytes / 4;  // elements
  struct Block {
    const std::string& name;
    Tensor data;
  };
  std::vector<Block> blocks;
  std::vector<StoredSlice> slices;
  for (const StateTensor& tensor : tensors) {
    slices.push_back({.name = tensor.name, .slice = tensor.slice});
    for (int64_t at = 0; at < tensor.slice.count; at += kBlock)
      blocks.push_back({tensor.name, tensor.data.slice(at, std::min(kBlock, tensor.slice.count - at))});
  }
  ShardWriter writer(disk, directory, name, std::move(slices));
  std::optional<StagingPair> staging;
  if (copies) staging.emplace(device, *copies, Manifest::kBlockBytes);
  const auto fetch = [&](size_t i) {
    if (!copies || i >= blocks.size()) return;
    device.copy_to_host(blocks[i].data, staging->wait(i), *copies);
    staging->copies_queued(i);
  };
  fetch(0);
  for (size_t i = 0; i < blocks.size(); ++i) {
    fetch(i + 1);
    const auto& [tensor, data] = blocks[i];
    const char* const block = copies ? staging->wait(i) : static_cast<const char*>(data.data);
    // A run resumed from non-finite values would be lost, and keep_last would remove the last good checkpoint.
    if (!all_finite({reinterpret_cast<const float*>(block), static_cast<size_t>(data.numel())}))
      throw NumericsError(tensor + " has a non-finite value");
    writer.add_block({block, static_cast<size_t>(data.bytes())});
  }
  return writer.finish();
}

void write_manifest(const Disk& disk, const std::string& directory, Manifest manifest, const TrainState& state,
                    const std::string& config) {
  const auto add = [&](const std::string& name, const std::string& text) {
    disk.write_file(directory + "/" + name, text);
    manifest.files.push_back({name, static_cast<int64_t>(text.size()), content_hash(text)});
  };
  add("train_state.json", to_json(state));
  add("config.resolved.yaml", config);
  disk.write_file(directory + "/manifest.json", to_json(manifest));
}

}  // namespace trivet
