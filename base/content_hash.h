// XXH3-128 of bytes as 32 hexadecimal digits: tells whether a file is the intended one, but does not detect forgery.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "base/files.h"

struct XXH3_state_s;

namespace trivet {

class ContentHash {
 public:
  ContentHash();
  ~ContentHash();
  ContentHash(const ContentHash&) = delete;
  ContentHash& operator=(const ContentHash&) = delete;

  void add(const void* data, size_t bytes);
  // Adds the whole file; calls progress(bytes so far) from time to time.
  void add(const InputFile& file, const std::function<void(int64_t)>& progress = {});
  std::string hex() const;  // of everything added so far

 private:
  XXH3_state_s* state_;
};

std::string content_hash(std::string_view bytes);
std::string content_hash(const InputFile& file, const std::function<void(int64_t)>& progress = {});
// The hash of kSampledBytes in 256 blocks, spread evenly from the first byte to the last; a smaller file is hashed
// whole. Takes milliseconds for any file size.
inline constexpr int64_t kSampledBytes = 16 << 20;
std::string sampled_hash(const InputFile& file);

}  // namespace trivet
