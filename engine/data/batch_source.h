// Samples: a dataset's samples by index. BatchSource: a rank's micro-batches of samples, in the order of its steps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/data/documents.h"

namespace trivet {

// Thread-safe.
class Samples {
 public:
  virtual ~Samples() = default;
  virtual int64_t seq_length() const = 0;
  // index: 0 or more. tokens: [s + 1], -1 past the end of data that does not repeat. ends (may be null)
  // receives, in ascending order, the index in `tokens` just past the last token of each document that ends there.
  void sample(int64_t index, std::span<int32_t> tokens, std::vector<int32_t>* ends = nullptr) const {
    if (ends) ends->clear();
    read_sample(index, tokens, ends);
  }
  // The number of samples in one pass over the data, and the number of labels in the first `samples` of them.
  virtual int64_t samples() const = 0;
  virtual int64_t labels_of(int64_t samples) const = 0;

 private:
  virtual void read_sample(int64_t index, std::span<int32_t> tokens, std::vector<int32_t>* ends) const = 0;
};

struct Batch {
  std::vector<int32_t> tokens;  // [s, b]
  std::vector<int32_t> labels;  // [s, b]: the next tokens, or kNoLabel, kMaskedLabel
  // [s, b] each, if documents are kept apart: positions within the document, and the document's first position in
  // the sample; else empty.
  std::vector<int32_t> position_ids = {}, starts = {};
  int64_t first_sample = 0;
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // The next micro-batch, valid until the next call to next() or restart().
  virtual const Batch& next() = 0;
  // Restarts at this sample of the dataset.
  virtual void restart(int64_t start_sample) = 0;
};

}  // namespace trivet
