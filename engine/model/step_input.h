// StepInput: the micro-batches of two steps in host memory. The host fills those of one step while the device copies
// those of the other.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/device.h"

namespace trivet {

// One micro-batch in (pinned) host memory.
struct HostBatch {
  std::span<int32_t> tokens, labels;        // [s, b] each
  std::span<int32_t> position_ids, starts;  // [s, b] each, as in Batch
  int64_t& first_sample;                    // global index

  // Sets batch entry 0 to `context`, padded at the end, which is harmless because attention is causal.
  void fill_with(std::span<const int32_t> context, size_t entries) {
    std::fill(tokens.begin(), tokens.end(), 0);
    std::fill(labels.begin(), labels.end(), 0);
    for (size_t i = 0; i < context.size(); ++i) tokens[i * entries] = context[i];
    first_sample = 0;
  }
};

class StepInput {
 public:
  // tokens: per micro-batch. The device must outlive this object.
  StepInput(Device& device, int64_t micro_batches, int64_t tokens) {
    for (Side& side : sides_) {
      constexpr int64_t kArrays = 4;
      const int64_t bytes = sizeof(int64_t) + kArrays * tokens * sizeof(int32_t);
      side.memory = std::make_unique<HostBuffer>(device, micro_batches * bytes);
      side.read = device.create_event();
      const auto n = static_cast<size_t>(tokens);
      auto* const samples = static_cast<int64_t*>(side.memory->data());
      auto* next = reinterpret_cast<int32_t*>(samples + micro_batches);
      for (int64_t i = 0; i < micro_batches; ++i, next += kArrays * n) {
        side.batches.push_back({{next, n}, {next + n, n}, {next + 2 * n, n}, {next + 3 * n, n}, samples[i]});
      }
    }
  }

  // Returns the next step's memory, once the device has read its previous contents.
  std::span<HostBatch> take() {
    turn_ = 1 - turn_;
    sides_[turn_].read->synchronize();
    return sides_[turn_].batches;
  }
  // To be called once everything that reads the memory taken last is queued on `stream`.
  void queued(Stream& stream) { stream.record(*sides_[turn_].read); }

 private:
  struct Side {
    std::unique_ptr<HostBuffer> memory;
    std::unique_ptr<Event> read;
    std::vector<HostBatch> batches;
  };
  Side sides_[2];
  size_t turn_ = 0;
};

}  // namespace trivet
