// Samples of a dataset by their index, and BatchSource: a rank's micro-batches of them, in the order of its steps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/data/documents.h"

namespace trivet {

// Any thread.
class Samples {
 public:
  virtual ~Samples() = default;
  virtual int64_t seq_length() const = 0;
  // tokens: [s + 1], -1 past the end of data that end. ends (null: not asked for) becomes the indices after the last
  // tokens of documents of the dataset, ascending. Any index from 0 on.
  void sample(int64_t index, std::span<int32_t> tokens, std::vector<int32_t>* ends = nullptr) const {
    if (ends) ends->clear();
    read_sample(index, tokens, ends);
  }
  // The samples of one reading of the data, and the labels in its first `samples`.
  virtual int64_t samples() const = 0;
  virtual int64_t labels_of(int64_t samples) const = 0;

 private:
  virtual void read_sample(int64_t index, std::span<int32_t> tokens, std::vector<int32_t>* ends) const = 0;
};

struct Batch {
  std::vector<int32_t> tokens;  // [s, b]
  std::vector<int32_t> labels;  // [s, b]: the tokens one later, or kNoLabel, kMaskedLabel
  // [s, b] each, where documents are told apart: positions in the document, and the first position of the sample that
  // is the document's; else empty.
  std::vector<int32_t> position_ids = {}, starts = {};
  int64_t first_sample = 0;
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // The next micro-batch, valid until the following call of next() or restart().
  virtual const Batch& next() = 0;
  // Restarts at this sample of its data set.
  virtual void restart(int64_t start_sample) = 0;
};

}  // namespace trivet
