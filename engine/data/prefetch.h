// BatchLoader: a background thread that reads and transposes micro-batches while the model computes.
//
// Each rank of a tensor- and pipeline-parallel group runs a loader with the same plan, so all get the same data without
// a broadcast. Not thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/config/batch_sizes.h"
#include "engine/data/batch_source.h"

namespace trivet {

// The global samples of a data-parallel rank. Micro-batch j of step i on rank r of d, with b samples each:
//   start_sample + i m d b + (j d + r) b + [0, b)
// A step takes the same global_batch_size = m d b samples for every d. With a ramp, m follows from the step's batch
// size.
struct BatchPlan {
  int64_t start_sample = 0;  // consumed before the first step
  int64_t micro_batch_size = 1;
  int64_t micro_batches = 1;  // m, per step
  int rank = 0;               // in the data-parallel group
  int ranks = 1;
  BatchSizes ramp{};                                         // batch sizes of the steps; empty: all equal
  int64_t end_sample = std::numeric_limits<int64_t>::max();  // samples from here on carry no labels

  // The first sample of this rank's k-th micro-batch, counted over steps.
  int64_t first_sample(int64_t k) const {
    const int64_t together = ranks * micro_batch_size;
    int64_t begin = start_sample;  // first sample of the run of equally large steps that contains k
    ramp.each_run(start_sample, [&](int64_t run_begin, int64_t steps, int64_t samples) {
      begin = run_begin;
      const int64_t m = samples / together;
      if (k / m < steps) return true;
      k -= steps * m;
      return false;
    });
    return begin + k * together + rank * micro_batch_size;
  }
  BatchPlan of_full_batches(int64_t end = std::numeric_limits<int64_t>::max()) const {
    BatchPlan plan = *this;
    plan.ramp = {};
    plan.end_sample = end;
    return plan;
  }
};

class BatchLoader : public BatchSource {
 public:
  // Prepares `depth` micro-batches ahead, from the first call of next() on; 0: next() prepares each when called.
  // `dataset` must outlive the loader.
  BatchLoader(const Samples& dataset, BatchPlan plan, int64_t depth, const DocumentRules& documents = {});
  BatchLoader(const BatchLoader&) = delete;

  // Rethrows an error from preparing the micro-batch, as does every later call.
  const Batch& next() override;

  // Lets every evaluation read the same data.
  void restart(int64_t start_sample) override;

 private:
  struct Slot {
    Batch batch;
    std::exception_ptr error;
  };

  void run(const std::stop_token& stop);
  void prepare(int64_t k, Slot& slot);
  Slot& slot(int64_t k) { return slots_[static_cast<size_t>(k) % slots_.size()]; }

  const Samples& dataset_;
  BatchPlan plan_;
  const DocumentRules documents_;
  std::vector<Slot> slots_;             // a ring of depth + 1: one is the consumer's
  std::vector<int32_t> sample_, ends_;  // [s + 1] tokens, and where its documents end; for the preparing thread

  std::mutex mutex_;
  std::condition_variable_any changed_;
  int64_t prepared_ = 0;  // micro-batches put into the ring since the start; guarded by mutex_
  int64_t taken_ = 0;     // micro-batches returned; the last of them is still in use; guarded by mutex_
  std::jthread thread_;   // declared last; not running before next(), or if depth is 0
};

}  // namespace trivet
