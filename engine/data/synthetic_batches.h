// SyntheticBatches: repeats one micro-batch, without a dataset.
#pragma once

#include "engine/data/batch_source.h"

namespace trivet {

class SyntheticBatches : public BatchSource {
 public:
  // tokens: per micro-batch.
  SyntheticBatches(int64_t tokens, int64_t vocab) {
    for (int64_t i = 0; i < tokens; ++i) batch_.tokens.push_back(static_cast<int32_t>(i % vocab));
    batch_.labels = batch_.tokens;
    batch_.position_ids.assign(batch_.tokens.size(), 0);
    batch_.starts = batch_.position_ids;
  }
  const Batch& next() override { return batch_; }
  void restart(int64_t) override {}

 private:
  Batch batch_;
};

}  // namespace trivet
