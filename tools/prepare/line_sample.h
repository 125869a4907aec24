// LineSample: a uniform sample of the lines in a text of unknown length, for training a tokenizer. It depends only on
// the lines and their order. Memory: about three times the budget.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trivet {

class LineSample {
 public:
  // `lines` false: samples parts of a few KiB instead of lines; line ends are then part of the text.
  explicit LineSample(int64_t budget_bytes, bool lines = true) : budget_(budget_bytes), of_lines_(lines) {}

  // Adds a document's lines, splitting long ones.
  void add(std::string_view text);

  // The sample in order: at most the budget, or one line.
  std::vector<std::string> take();

 private:
  struct Line {
    uint64_t rank;  // random; the lines with the lowest ranks form the sample
    uint64_t number;
    std::string text;
  };

  void trim();

  int64_t budget_;
  bool of_lines_;
  int64_t bytes_ = 0;  // of lines_
  uint64_t count_ = 0;
  uint64_t limit_ = UINT64_MAX;  // lines of this rank or higher are excluded
  std::vector<Line> lines_;
};

}  // namespace trivet
