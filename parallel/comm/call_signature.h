// CallSignature: what a rank says it is calling. Ranks compare theirs before any data moves, so that a skipped call, a
// wrong size or a wrong type is an error that names both sides, not a hang or silent corruption.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/comm/comm.h"

namespace trivet {

enum class CommCall : uint8_t { all_reduce, reduce_scatter, all_gather, broadcast, transfer, barrier, split };

// Plain bytes: it travels in message headers. All fields are set, so that operator== means "the same call".
struct CallSignature {
  CommCall call = CommCall::barrier;
  DType dtype = DType::u8;
  Reduce reduce = Reduce::sum;
  int32_t root = -1;      // of a broadcast
  int64_t numel = 0;      // of `full`, or of the tensor sent
  uint64_t sequence = 0;  // how many calls (of a pair's transfers, for a transfer) went before
  bool operator==(const CallSignature&) const = default;
};

inline int64_t bytes_of(const CallSignature& s) { return s.numel * size_of(s.dtype); }

inline std::string to_string(const CallSignature& s) {
  std::string text;
  switch (s.call) {
    case CommCall::all_reduce:
    case CommCall::reduce_scatter:
      text = s.call == CommCall::all_reduce ? "all_reduce" : "reduce_scatter";
      text += s.reduce == Reduce::sum ? "(sum)" : s.reduce == Reduce::max ? "(max)" : "(average)";
      break;
    case CommCall::all_gather: text = "all_gather"; break;
    case CommCall::broadcast: text = "broadcast from " + std::to_string(s.root); break;
    case CommCall::transfer: text = "transfer"; break;
    case CommCall::barrier: return "barrier";
    case CommCall::split: return "split";
  }
  return text + " of " + std::to_string(s.numel) + " " + name_of(s.dtype);
}

// Of one transfer, for the trace: both ends compute the same. `group` is unlike that of every other group that shares
// these two ranks of the world.
inline uint64_t transfer_id(uint64_t group, int from_world, int to_world, uint64_t sequence) {
  uint64_t id = 0;
  for (const uint64_t x : {group, static_cast<uint64_t>(from_world), static_cast<uint64_t>(to_world), sequence}) {
    id += x + 0x9e3779b97f4a7c15u;  // splitmix64 of one number after another
    id = (id ^ (id >> 30)) * 0xbf58476d1ce4e5b9u;
    id = (id ^ (id >> 27)) * 0x94d049bb133111ebu;
    id ^= id >> 31;
  }
  return id;
}

// The error text of two ranks of the world that disagree.
inline std::string mismatch_text(const std::string& group, int rank_a, const CallSignature& a, int rank_b,
                                 const CallSignature& b) {
  if (a.call == CommCall::transfer)
    return "group '" + group + "', transfer " + std::to_string(a.sequence) + ": rank " + std::to_string(rank_a) +
           " sends " + std::to_string(a.numel) + " " + name_of(a.dtype) + ", rank " + std::to_string(rank_b) +
           " receives " + std::to_string(b.numel) + " " + name_of(b.dtype);
  return "group '" + group + "', call " + std::to_string(a.sequence) + ": rank " + std::to_string(rank_a) + " calls " +
         to_string(a) + ", rank " + std::to_string(rank_b) + " calls " + to_string(b);
}

// Checks the arguments of a call against its contract; `call` is the name in the error.
inline void check_shards(const char* call, const Tensor& full, const Tensor& shard, int rank, int size) {
  if (full.dtype != shard.dtype || full.numel() != shard.numel() * size)
    fail(std::string(call) + ": full has " + std::to_string(full.numel()) + " " + name_of(full.dtype) + ", shard has " +
         std::to_string(shard.numel()) + " " + name_of(shard.dtype) + ", the group " + std::to_string(size) + " ranks");
  const auto begin = reinterpret_cast<uintptr_t>(full.data), end = begin + static_cast<uintptr_t>(full.bytes());
  const auto own = reinterpret_cast<uintptr_t>(shard.data);
  const auto bytes = static_cast<uintptr_t>(shard.bytes());
  if (own != begin + static_cast<uintptr_t>(rank) * bytes && own < end && own + bytes > begin)
    fail(std::string(call) + ": shard overlaps full, but is not this rank's slice of it");
}

}  // namespace trivet
