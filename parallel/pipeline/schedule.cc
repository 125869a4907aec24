#include "parallel/pipeline/schedule.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <set>
#include <utility>

#include "base/check.h"

namespace trivet {

const char* letter_of(OpKind kind) {
  constexpr std::array kLetters{"F", "B", "I", "W"};
  return kLetters[static_cast<size_t>(kind)];
}

std::string to_string(const Op& op, bool with_chunk) {
  return with_chunk ? fmt::format("{}{}.{}", letter_of(op.kind), op.microbatch, op.chunk)
                    : fmt::format("{}{}", letter_of(op.kind), op.microbatch);
}

std::string to_string(const Channel& channel) {
  return fmt::format("pp {} -> pp {} ({})", channel.from, channel.to,
                     channel.payload == Payload::activation ? "activations" : "gradients");
}

// ---- stage map

int Schedule::stage_of(int rank, int chunk) const {
  const bool backwards = map == StageMap::v_shaped && chunk % 2 == 1;
  return chunk * p + (backwards ? p - 1 - rank : rank);
}

int Schedule::rank_of(int stage) const {
  const bool backwards = map == StageMap::v_shaped && chunk_of(stage) % 2 == 1;
  return backwards ? p - 1 - stage % p : stage % p;
}

std::optional<Channel> Schedule::channel(int rank, const Op& op, bool sends) const {
  if (op.kind == OpKind::backward_weight) return std::nullopt;
  const bool forward = op.kind == OpKind::forward;
  const int peer_stage = stage_of(rank, op.chunk) + (forward == sends ? 1 : -1);
  if (peer_stage < 0 || peer_stage == stages() || rank_of(peer_stage) == rank) return std::nullopt;
  const Payload payload = forward ? Payload::activation : Payload::gradient;
  return sends ? Channel{rank, rank_of(peer_stage), payload} : Channel{rank_of(peer_stage), rank, payload};
}

// ---- slots

namespace {

// Allocates numbers from 0; take() returns the lowest free one.
class NumberPool {
 public:
  int take() { return free_.empty() ? size_++ : free_.extract(free_.begin()).value(); }
  void give_back(int number) { free_.insert(number); }
  int size() const { return size_; }

 private:
  std::set<int> free_;
  int size_ = 0;
};

}  // namespace

SlotPlan plan_slots(const Program& program, int chunks, SlotPool pool) {
  const size_t pools = pool == SlotPool::per_chunk ? static_cast<size_t>(chunks) : 1;
  std::vector<NumberPool> slots(pools), stashes(pools);
  int microbatches = 0;
  for (const Op& op : program) microbatches = std::max(microbatches, op.microbatch + 1);
  // [chunk][micro-batch]: -1 if it is not in flight
  std::vector<int> slot_of(static_cast<size_t>(chunks * microbatches), -1), stash_of = slot_of;

  SlotPlan plan;
  for (const Op& op : program) {
    const size_t key = static_cast<size_t>(op.chunk * microbatches + op.microbatch);
    const size_t from = pool == SlotPool::per_chunk ? static_cast<size_t>(op.chunk) : 0;
    const auto missing = [&](char what) {
      fail(fmt::format("the program runs {} but no {} of this micro-batch and chunk before it", to_string(op, true),
                       what));
    };
    if (op.kind == OpKind::forward) slot_of[key] = slots[from].take();
    if (slot_of[key] < 0) missing('F');
    if (op.kind == OpKind::backward_input) stash_of[key] = stashes[from].take();
    if (op.kind == OpKind::backward_weight && stash_of[key] < 0) missing('I');
    plan.slot.push_back(slot_of[key]);
    plan.stash.push_back(stash_of[key]);
    if (op.kind == OpKind::backward_weight) stashes[from].give_back(std::exchange(stash_of[key], -1));
    if (op.kind == OpKind::backward || op.kind == OpKind::backward_weight)
      slots[from].give_back(std::exchange(slot_of[key], -1));
  }
  for (size_t i = 0; i < pools; ++i) {
    plan.slots.push_back(slots[i].size());
    plan.stashes.push_back(stashes[i].size());
  }
  return plan;
}

}  // namespace trivet
