#include "base/content_hash.h"

#include <algorithm>
#include <fmt/format.h>
#include <new>
#include <vector>
#include <xxhash.h>

namespace trivet {

ContentHash::ContentHash() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state_);
}

ContentHash::~ContentHash() { XXH3_freeState(state_); }

void ContentHash::add(const void* data, size_t bytes) { XXH3_128bits_update(state_, data, bytes); }

void ContentHash::add(const InputFile& file, const std::function<void(int64_t)>& progress) {
  std::vector<std::byte> block(1 << 20);
  for (int64_t offset = 0; offset < file.size();) {
    const auto part = std::span(block).first(std::min(block.size(), static_cast<size_t>(file.size() - offset)));
    file.read_at(offset, part);
    add(part.data(), part.size());
    offset += static_cast<int64_t>(part.size());
    if (progress) progress(offset);
  }
}

std::string ContentHash::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string content_hash(std::string_view bytes) {
  ContentHash hash;
  hash.add(bytes.data(), bytes.size());
  return hash.hex();
}

std::string content_hash(const InputFile& file, const std::function<void(int64_t)>& progress) {
  ContentHash hash;
  hash.add(file, progress);
  return hash.hex();
}

std::string sampled_hash(const InputFile& file) {
  if (file.size() <= kSampledBytes) return content_hash(file);
  constexpr int64_t kBlocks = 256, kBlock = kSampledBytes / kBlocks;
  ContentHash hash;
  std::vector<std::byte> block(kBlock);
  for (int64_t i = 0; i < kBlocks; ++i) {
    file.read_at((file.size() - kBlock) * i / (kBlocks - 1), block);
    hash.add(block.data(), block.size());
  }
  return hash.hex();
}

}  // namespace trivet
