// Text that is printed while its tokens come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/data/tokenizer.h"

namespace trivet {

// Gives what further tokens cannot change any more to `put`; the ids themselves, with commas, without a tokenizer.
class TextPrinter {
 public:
  TextPrinter(const Tokenizer* tokenizer, std::function<void(const std::string&)> put)
      : tokenizer_(tokenizer), put_(std::move(put)) {}

  void add(std::span<const int32_t> tokens);
  void finish();  // the rest, and the end of the line

 private:
  const Tokenizer* tokenizer_;
  std::function<void(const std::string&)> put_;
  std::vector<int32_t> held_;
  size_t printed_ = 0;  // bytes of the text
  bool begun_ = false;  // of token ids
};

}  // namespace trivet
