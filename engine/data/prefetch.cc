#include "engine/data/prefetch.h"

#include <algorithm>
#include <fmt/format.h>

#include "base/check.h"
#include "base/host_memory.h"

namespace trivet {

BatchLoader::BatchLoader(const Samples& dataset, BatchPlan plan, int64_t depth, const DocumentRules& documents)
    : dataset_(dataset), plan_(plan), documents_(documents) {
  check(plan.start_sample >= 0 && plan.micro_batch_size > 0 && plan.micro_batches > 0 && 0 <= plan.rank &&
            plan.rank < plan.ranks && depth >= 0,
        fmt::format("batch plan: start sample {}, micro-batch size {}, {} micro-batches, data-parallel rank {} of {}, "
                    "prefetch {}",
                    plan.start_sample, plan.micro_batch_size, plan.micro_batches, plan.rank, plan.ranks, depth));
  sample_.resize(static_cast<size_t>(dataset.seq_length()) + 1);
  slots_.resize(static_cast<size_t>(depth) + 1);
  for (Slot& slot : slots_) {
    slot.batch.tokens.resize(static_cast<size_t>(dataset.seq_length() * plan.micro_batch_size));
    slot.batch.labels.resize(slot.batch.tokens.size());
    if (documents.reset_position_ids) slot.batch.position_ids.resize(slot.batch.tokens.size());
    if (documents.reset_attention_mask) slot.batch.starts.resize(slot.batch.tokens.size());
  }
}

void BatchLoader::restart(int64_t start_sample) {
  check(start_sample >= 0, fmt::format("cannot restart at sample {}", start_sample));
  thread_ = {};  // stops and joins it
  plan_.start_sample = start_sample;
  prepared_ = taken_ = 0;
  for (Slot& slot : slots_) slot.error = nullptr;
}

void BatchLoader::prepare(int64_t k, Slot& slot) {
  const int64_t s = dataset_.seq_length(), b = plan_.micro_batch_size;
  Batch& batch = slot.batch;
  batch.first_sample = plan_.first_sample(k);
  for (int64_t column = 0; column < b; ++column) {
    const int64_t index = batch.first_sample + column;
    ends_.clear();
    if (index < plan_.end_sample) dataset_.sample(index, sample_, documents_.any() ? &ends_ : nullptr);
    else std::ranges::fill(sample_, kNoLabel);
    DocumentWalk walk(documents_, ends_);
    for (int64_t row = 0; row < s; ++row) {
      const auto to = static_cast<size_t>(row * b + column), from = static_cast<size_t>(row);
      const auto [position_id, start, label] = walk.next(static_cast<int32_t>(row), sample_[from], sample_[from + 1]);
      batch.tokens[to] = std::max(sample_[from], 0);
      batch.labels[to] = label;
      if (documents_.reset_position_ids) batch.position_ids[to] = position_id;
      if (documents_.reset_attention_mask) batch.starts[to] = start;
    }
  }
}

void BatchLoader::run(const std::stop_token& stop) {
  const MemoryPurpose purpose("batches that are prepared ahead");
  for (bool failed = false; !failed;) {
    std::unique_lock lock(mutex_);
    // The slot returned last is in use until next() is called again.
    const auto has_room = [this] {
      return prepared_ - (taken_ > 0 ? taken_ - 1 : 0) < static_cast<int64_t>(slots_.size());
    };
    if (!changed_.wait(lock, stop, has_room) || stop.stop_requested()) return;
    const int64_t k = prepared_;
    lock.unlock();
    try {
      prepare(k, slot(k));
    } catch (...) {
      slot(k).error = std::current_exception();
      failed = true;
    }
    lock.lock();
    ++prepared_;
    lock.unlock();
    changed_.notify_all();
  }
}

const Batch& BatchLoader::next() {
  if (slots_.size() == 1) {
    prepare(taken_, slots_[0]);
    ++taken_;
    return slots_[0].batch;
  }
  if (!thread_.joinable()) thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  std::unique_lock lock(mutex_);
  // An error is never skipped: the same slot throws again.
  if (taken_ > 0 && slot(taken_ - 1).error) std::rethrow_exception(slot(taken_ - 1).error);
  ++taken_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return prepared_ >= taken_; });
  Slot& ready = slot(taken_ - 1);
  if (ready.error) std::rethrow_exception(ready.error);
  return ready.batch;
}

}  // namespace trivet
