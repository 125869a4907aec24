// Call: one call of a Communicator, as its back end receives it. CallSignature: what ranks compare before any data
// moves, so that a skipped call, a wrong size or a wrong type is an error that names both sides, not a hang or silent
// corruption.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <fmt/format.h>
#include <string>

#include "base/check.h"
#include "kernels/base/tensor.h"
#include "kernels/base/trace.h"

namespace trivet {

enum class Reduce { sum, max, average };  // average: the sum, divided by the number of ranks

enum class CommCall : uint8_t { all_reduce, reduce_scatter, all_gather, broadcast, transfer, barrier, split };

struct Call {
  CommCall kind = CommCall::barrier;
  Tensor in{}, out{};  // the same tensor in an all_reduce or a broadcast; a send has no `out`, a receive no `in`
  Reduce op = Reduce::sum;
  int peer = -1;       // root of a broadcast, the other end of a transfer
  bool sends = false;  // a transfer: this rank is the sender

  // The tensor whose size the signature, the span and the link's cost use: `full`, or the tensor sent.
  const Tensor& whole() const {
    const bool comes_in = kind == CommCall::all_gather || (kind == CommCall::transfer && !sends);
    return comes_in ? out : in;
  }
};

inline const char* name_of(CommCall kind) {
  constexpr std::array kNames{"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                              "transfer",   "barrier",        "split"};
  return kNames[static_cast<size_t>(kind)];
}
inline const char* name_of(const Call& call) {
  return call.kind == CommCall::transfer ? (call.sends ? "send" : "recv") : name_of(call.kind);
}

// What a call costs each of its ranks; `bytes` is the size of Call::whole(). Every shard is sent straight to its
// owner, so shards share the sender's bandwidth and pay the latency once (a ring pays it n - 1 times). With n ranks:
//
//   reduce_scatter, all_gather   bytes (n-1)/n   1 latency
//   all_reduce                   2 bytes (n-1)/n, 2 latencies, one after the other
//   broadcast                    bytes (n-1)     1 latency
//   send to recv                 bytes           1 latency
inline WireCost wire_cost(CommCall call, int64_t bytes, int ranks) {
  const int64_t part = static_cast<int64_t>(static_cast<double>(bytes) * (ranks - 1) / ranks);
  switch (call) {
    case CommCall::reduce_scatter:
    case CommCall::all_gather: return {part, 1, true};
    case CommCall::all_reduce: return {2 * part, 2, true};
    case CommCall::broadcast: return {bytes * (ranks - 1), 1, true};
    case CommCall::transfer: return {bytes, 1, false};
    case CommCall::barrier:
    case CommCall::split: break;
  }
  return {};
}

// Trivially copyable, because message headers carry it. All fields are set, so that operator== means "the same call".
struct CallSignature {
  CommCall call = CommCall::barrier;
  DType dtype = DType::u8;
  Reduce reduce = Reduce::sum;
  int32_t root = -1;      // of a broadcast
  int64_t numel = 0;      // of Call::whole()
  uint64_t sequence = 0;  // number of earlier calls; for a transfer, of the pair's earlier transfers
  bool operator==(const CallSignature&) const = default;
};

inline CallSignature signature_of(const Call& call, uint64_t sequence = 0) {
  const bool moves = call.kind != CommCall::barrier && call.kind != CommCall::split;
  return {call.kind,
          moves ? call.whole().dtype : DType::u8,
          call.op,
          call.kind == CommCall::broadcast ? call.peer : -1,
          moves ? call.whole().numel() : 0,
          sequence};
}

inline int64_t bytes_of(const CallSignature& s) { return s.numel * size_of(s.dtype); }

inline std::string to_string(const CallSignature& s) {
  std::string text = name_of(s.call);
  if (s.call == CommCall::barrier || s.call == CommCall::split) return text;
  if (s.call == CommCall::all_reduce || s.call == CommCall::reduce_scatter)
    text += s.reduce == Reduce::sum ? "(sum)" : s.reduce == Reduce::max ? "(max)" : "(average)";
  if (s.call == CommCall::broadcast) text += " from " + std::to_string(s.root);
  return text + " of " + std::to_string(s.numel) + " " + name_of(s.dtype);
}

// Identifies a transfer in the trace: both ends compute the same ID. group: CommGroup::number.
inline uint64_t transfer_id(uint64_t group, int from_world, int to_world, uint64_t sequence) {
  uint64_t id = 0;
  for (const uint64_t x : {group, static_cast<uint64_t>(from_world), static_cast<uint64_t>(to_world), sequence}) {
    id += x + 0x9e3779b97f4a7c15u;  // splitmix64 of one value after another
    id = (id ^ (id >> 30)) * 0xbf58476d1ce4e5b9u;
    id = (id ^ (id >> 27)) * 0x94d049bb133111ebu;
    id ^= id >> 31;
  }
  return id;
}

// When a transfer's first byte could move, by the receiver's clock: both ends have called. mine, theirs: when the
// receiver and the sender called, each by its own clock; arrived: when the receiver learned of the sender's call.
inline int64_t both_called_ns(bool one_clock, int64_t mine, int64_t theirs, int64_t arrived) {
  return one_clock ? std::max(mine, theirs) : arrived;
}

// Two ranks disagree about a call. Either may be wrong, including the rank that throws this.
struct MismatchError : Error {
  using Error::Error;
};
[[noreturn]] inline void fail_mismatch(const std::string& group, int rank_a, const CallSignature& a, int rank_b,
                                       const CallSignature& b) {
  if (a.call == CommCall::transfer)
    throw MismatchError(fmt::format("group '{}', transfer {}: rank {} sends {} {}, rank {} receives {} {}", group,
                                    a.sequence, rank_a, a.numel, name_of(a.dtype), rank_b, b.numel, name_of(b.dtype)));
  throw MismatchError(fmt::format("group '{}', call {}: rank {} calls {}, rank {} calls {}", group, a.sequence, rank_a,
                                  to_string(a), rank_b, to_string(b)));
}

// ---- fault injection into the collectives of a Communicator, to test how mismatches are detected

enum class CallFault { none, skip, extra, wrong_size, wrong_type };

// next_call() is called before each collective of a group of several ranks, on the caller's thread.
class CallFaults {
 public:
  virtual ~CallFaults() = default;
  virtual CallFault next_call() = 0;
};

// Applies the fault: shortens the tensors, or gives them another type of at most the same size. A shard keeps its
// place within the full tensor.
inline Call changed(Call call, CallFault fault, int rank, int size) {
  if (fault != CallFault::wrong_size && fault != CallFault::wrong_type) return call;
  const auto change = [&](Tensor& x, int64_t fewer) {
    if (fault == CallFault::wrong_size) x = {x.data, x.dtype, {std::max(x.numel() - fewer, int64_t{0})}};
    else x = {x.data, x.dtype == DType::bf16 ? DType::u8 : DType::bf16, {x.numel()}};
  };
  const bool gathers = call.kind == CommCall::all_gather, scatters = call.kind == CommCall::reduce_scatter;
  change(call.in, scatters ? size : 1);
  change(call.out, gathers ? size : 1);
  if (gathers || scatters) {
    const Tensor& full = gathers ? call.out : call.in;
    Tensor& shard = gathers ? call.in : call.out;
    shard.data = static_cast<std::byte*>(full.data) + rank * shard.bytes();
  }
  return call;
}

}  // namespace trivet
