// Prints text as its tokens arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/data/tokenizer.h"

namespace trivet {

// Passes to `put` the text that further tokens can no longer change; without a tokenizer, comma-separated ids.
class TextPrinter {
 public:
  TextPrinter(const Tokenizer* tokenizer, std::function<void(const std::string&)> put)
      : tokenizer_(tokenizer), put_(std::move(put)) {}

  void add(std::span<const int32_t> tokens);
  void finish();  // prints the rest and a newline

 private:
  const Tokenizer* tokenizer_;
  std::function<void(const std::string&)> put_;
  std::vector<int32_t> held_;
  size_t printed_ = 0;  // bytes of the text printed so far
  bool begun_ = false;  // an id has been printed
};

}  // namespace trivet
