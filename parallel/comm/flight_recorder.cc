#include "parallel/comm/flight_recorder.h"

#include <algorithm>

namespace trivet {

std::string to_string(const FlightRecord& record) {
  if (record.call.call != CommCall::transfer) return to_string(record.call);
  return std::string(record.sends ? "send" : "recv") + " of " + std::to_string(record.call.numel) + " " +
         name_of(record.call.dtype);
}

int FlightRecorder::add_group(std::string name, std::vector<int> world_ranks, int rank) {
  FlightGroup group{.name = std::move(name), .world_ranks = std::move(world_ranks), .rank = rank};
  group.sends_enqueued.resize(group.world_ranks.size());
  group.receives_enqueued.resize(group.world_ranks.size());
  group.sent.resize(group.world_ranks.size());
  std::lock_guard lock(mutex_);
  groups_.push_back(std::move(group));
  return static_cast<int>(groups_.size()) - 1;
}

int FlightRecorder::enqueue(int group, CallSignature call, int peer, bool sends) noexcept {
  std::lock_guard lock(mutex_);
  FlightGroup& counts = groups_[static_cast<size_t>(group)];
  const bool transfer = call.call == CommCall::transfer;
  uint64_t& sequence = !transfer ? counts.enqueued
                       : sends   ? counts.sends_enqueued[static_cast<size_t>(peer)]
                                 : counts.receives_enqueued[static_cast<size_t>(peer)];
  call.sequence = sequence++;
  last_activity_ns_ = now_ns();
  const auto is_open = [](const FlightRecord& record) {
    return record.state == FlightState::enqueued || record.state == FlightState::started;
  };
  size_t tried = 0;
  while (tried < records_.size() && is_open(records_[next_])) next_ = (next_ + 1) % records_.size(), ++tried;
  if (tried == records_.size()) {
    next_ = records_.size();
    records_.resize(2 * records_.size());
  }
  const size_t slot = next_;
  next_ = (next_ + 1) % records_.size();
  records_[slot] = {.number = calls_++,
                    .group = group,
                    .call = call,
                    .peer = peer,
                    .sends = sends,
                    .state = FlightState::enqueued,
                    .enqueued_ns = last_activity_ns_};
  return static_cast<int>(slot);
}

void FlightRecorder::start(int slot) noexcept {
  std::lock_guard lock(mutex_);
  FlightRecord& record = records_[static_cast<size_t>(slot)];
  record.state = FlightState::started;
  record.started_ns = last_activity_ns_ = now_ns();
  if (record.call.call != CommCall::transfer) ++groups_[static_cast<size_t>(record.group)].started;
}

void FlightRecorder::finish(int slot, bool failed) noexcept {
  std::lock_guard lock(mutex_);
  FlightRecord& record = records_[static_cast<size_t>(slot)];
  record.state = failed ? FlightState::failed : FlightState::done;
  record.done_ns = last_activity_ns_ = now_ns();
  if (failed) return;
  FlightGroup& group = groups_[static_cast<size_t>(record.group)];
  if (record.call.call != CommCall::transfer) ++group.done;
  else if (record.sends) ++group.sent[static_cast<size_t>(record.peer)];
}

void FlightRecorder::set_source(std::function<void()> source) {
  std::lock_guard lock(source_mutex_);
  source_ = std::move(source);
}

void FlightRecorder::ask_source() const {
  std::lock_guard lock(source_mutex_);
  if (source_) source_();
}

std::optional<FlightRecord> FlightRecorder::oldest_started() const {
  ask_source();
  std::lock_guard lock(mutex_);
  std::optional<FlightRecord> oldest;
  for (const FlightRecord& record : records_)
    if (record.state == FlightState::started && (!oldest || record.started_ns < oldest->started_ns)) oldest = record;
  return oldest;
}

int64_t FlightRecorder::last_activity_ns() const {
  ask_source();
  std::lock_guard lock(mutex_);
  return last_activity_ns_;
}

FlightLog FlightRecorder::log() const {
  ask_source();
  FlightLog log{.rank = rank_};
  {
    std::lock_guard lock(mutex_);
    log.taken_ns = now_ns();
    log.last_activity_ns = last_activity_ns_;
    log.groups = groups_;
    log.records = records_;
  }
  std::erase_if(log.records, [](const FlightRecord& record) { return record.state == FlightState::none; });
  std::sort(log.records.begin(), log.records.end(),
            [](const FlightRecord& a, const FlightRecord& b) { return a.number < b.number; });
  return log;
}

}  // namespace trivet
