// XXH3-128 of bytes as 32 hexadecimal digits: tells whether a file is the one that was meant. Not against forgery.
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
  // The whole file; progress(bytes so far) is called now and then.
  void add(const InputFile& file, const std::function<void(int64_t)>& progress = {});
  std::string hex() const;  // of all that was added so far

 private:
  XXH3_state_s* state_;
};

std::string content_hash(std::string_view bytes);
std::string content_hash(const InputFile& file, const std::function<void(int64_t)>& progress = {});
// The hash of kSampledBytes in 256 blocks, spread evenly from the first byte to the last; of all of a smaller file.
// Takes milliseconds whatever the size.
inline constexpr int64_t kSampledBytes = 16 << 20;
std::string sampled_hash(const InputFile& file);

}  // namespace trivet
