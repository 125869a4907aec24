// BatchSource: a rank's micro-batches, in the order of its steps.
#pragma once

#include <cstdint>
#include <vector>

namespace trivet {

struct Batch {
  std::vector<int32_t> tokens;  // [s, b]
  std::vector<int32_t> labels;  // [s, b]: the tokens one later; -1: none, behind the end of the data
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
