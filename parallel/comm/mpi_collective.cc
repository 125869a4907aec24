#include "parallel/comm/mpi_collective.h"

#include <algorithm>
#include <bit>

#include "base/piece.h"

namespace trivet {
namespace {

// Chunks are small enough to be summed while in cache and not to delay other messages, and large enough to amortise the
// cost of a message.
constexpr int64_t kSmallestChunk = piece(32 << 10, 4 << 10), kLargestSumChunk = piece(256 << 10, 8 << 10),
                  kGatherChunk = piece(512 << 10, 4 << 10);

constexpr int64_t slice_begin(int64_t numel, int rank, int size) { return numel * rank / size; }
static_assert(slice_begin(int64_t{1} << 40, 1023, 1024) == (int64_t{1} << 40) - (1 << 30));

}  // namespace

MpiCollective::MpiCollective(MpiProgress& progress, const CommGroup& group)
    : MpiTask(progress),
      group_(group),
      peers_(static_cast<size_t>(group.size())),
      between_hosts_(
          !std::ranges::all_of(group.world_ranks, [&](int rank) { return progress.mpi().shares_memory(rank); })) {}

// ---- the calls

void MpiCollective::perform(const Call& call, const CallSignature& mine) {
  signature_ = mine;
  matched_ns_ = now_ns();
  for (Peer& peer : peers_) {
    peer.streams = {};
    peer.out_payload = peer.in_payload = 0;
    peer.header_arrived = false;
    peer.out.signature = signature_;
    peer.out.called_ns = matched_ns_;
  }
  switch (call.kind) {
    case CommCall::all_reduce: return all_reduce(call.in, call.op);
    case CommCall::reduce_scatter: return reduce_scatter(call.in, call.out, call.op);
    case CommCall::all_gather:
    case CommCall::split: return all_gather(call.in, call.out);
    case CommCall::broadcast: return broadcast(call.in, call.peer);
    case CommCall::transfer:
    case CommCall::barrier: return run_call();
  }
}

void MpiCollective::all_reduce(Tensor full, Reduce op) {
  if (full.bytes() <= MpiHeader::kPayload) {
    for_each_peer([&](int p) { set_payload(p, full.data, full.bytes()); });
    run_call();
    return add_payloads(op, full, full);
  }
  const int n = group_.size();
  const int64_t element = size_of(full.dtype), chunk = sum_chunk(full.bytes() / n, n);
  auto* data = static_cast<std::byte*>(full.data);
  const auto slice = [&](int r) { return data + slice_begin(full.numel(), r, n) * element; };
  set_scatter_streams(data, full.numel(), element, chunk);
  const int64_t own_bytes = slice(group_.rank + 1) - slice(group_.rank);
  sum_ = {slice(group_.rank), slice(group_.rank), own_bytes, chunk, full.dtype, op};
  for_each_peer([&](int p) {
    Peer& peer = peer_of(p);
    set_stream(p, gather_out, slice(group_.rank), own_bytes, chunk);
    peer.streams[gather_out].gate = &sum_.done;
    // The sum overwrites this rank's term, so it must not arrive before the term has been sent.
    set_stream(p, gather_in, slice(p), slice(p + 1) - slice(p), chunk);
    peer.streams[gather_in].gate = &peer.streams[scatter_out].done;
  });
  run_call();
}

void MpiCollective::reduce_scatter(Tensor full, Tensor shard, Reduce op) {
  auto* data = static_cast<std::byte*>(full.data);
  std::byte* own = data + group_.rank * shard.bytes();
  if (shard.bytes() <= MpiHeader::kPayload) {
    for_each_peer([&](int p) { set_payload(p, data + p * shard.bytes(), shard.bytes()); });
    run_call();
    return add_payloads(op, {own, shard.dtype, shard.shape}, shard);
  }
  const int64_t chunk = sum_chunk(shard.bytes(), group_.size());
  set_scatter_streams(data, full.numel(), size_of(full.dtype), chunk);
  sum_ = {own, static_cast<std::byte*>(shard.data), shard.bytes(), chunk, shard.dtype, op};
  run_call();
}

void MpiCollective::all_gather(Tensor shard, Tensor full) {
  const auto place = [&](int r) { return static_cast<std::byte*>(full.data) + r * shard.bytes(); };
  std::byte* const own = place(group_.rank);
  if (shard.data != own && shard.bytes() > 0) std::memcpy(own, shard.data, static_cast<size_t>(shard.bytes()));
  swap(shard.bytes(), own, place);
}

template <class In>
void MpiCollective::swap(int64_t bytes, std::byte* from, const In& in) {
  const bool small = bytes <= MpiHeader::kPayload;
  for_each_peer([&](int p) {
    std::byte* const to = in(p);
    if (small) {
      set_payload(p, from, from ? bytes : 0);
      peer_of(p).in_payload = to ? bytes : 0;
    } else {
      if (from) set_stream(p, gather_out, from, bytes, kGatherChunk);
      if (to) set_stream(p, gather_in, to, bytes, kGatherChunk);
    }
  });
  run_call();
  if (!small || bytes == 0) return;
  for_each_peer([&](int p) {
    if (std::byte* to = in(p)) std::memcpy(to, peer_of(p).in.payload.data(), static_cast<size_t>(bytes));
  });
}

void MpiCollective::broadcast(Tensor data, int root) {
  auto* const bytes = static_cast<std::byte*>(data.data);
  const auto if_root = [&](int rank) { return rank == root ? bytes : nullptr; };
  swap(data.bytes(), if_root(group_.rank), if_root);
}

// ---- the caller's thread

void MpiCollective::run_call() {
  remaining_ = 0;
  headers_missing_ = group_.size() - 1;
  for_each_peer([&](int p) {
    remaining_ += 2;
    for (const ChunkStream& stream : peer_of(p).streams) remaining_ += stream.chunks;
  });
  run();
}

void MpiCollective::set_payload(int p, const void* data, int64_t bytes) {
  Peer& peer = peer_of(p);
  if (bytes > 0) std::memcpy(peer.out.payload.data(), data, static_cast<size_t>(bytes));
  peer.out_payload = peer.in_payload = bytes;
}

void MpiCollective::set_stream(int p, StreamKind kind, void* base, int64_t bytes, int64_t chunk) {
  ChunkStream& stream = peer_of(p).streams[kind];
  stream = {};
  stream.base = static_cast<std::byte*>(base);
  stream.bytes = bytes;
  stream.chunk = chunk;
  stream.chunks = (bytes + chunk - 1) / chunk;
}

void MpiCollective::set_scatter_streams(std::byte* full, int64_t numel, int64_t element, int64_t chunk) {
  const int n = group_.size();
  const auto begin = [&](int r) { return slice_begin(numel, r, n) * element; };
  const int64_t own_bytes = begin(group_.rank + 1) - begin(group_.rank);
  std::byte* bounce = bounce_.at_least((n - 1) * kBounceWindow * chunk);
  for_each_peer([&](int p) {
    set_stream(p, scatter_out, full + begin(p), begin(p + 1) - begin(p), chunk);
    set_stream(p, scatter_in, bounce, own_bytes, chunk);
    bounce += kBounceWindow * chunk;
    ChunkStream& in = peer_of(p).streams[scatter_in];
    in.ring = true;
    in.gate = &sum_.done;
    in.slack = kBounceWindow;
  });
}

int64_t MpiCollective::sum_chunk(int64_t bytes, int ranks) {
  const int64_t largest =
      std::max(kSmallestChunk, std::min(kLargestSumChunk, kMostBounce / (kBounceWindow * (ranks - 1))));
  const int64_t quarter = (bytes / 4 + 4095) / 4096 * 4096;  // so that receiving and adding overlap
  return std::clamp(quarter, kSmallestChunk, largest / 4096 * 4096);
}

void MpiCollective::add_payloads(Reduce op, Tensor own, Tensor result) {
  add_in_rank_order(
      op, own, [](const Peer& peer) { return peer.in.payload.data(); }, result.data);
}

template <class F>
void MpiCollective::add_in_rank_order(Reduce op, Tensor own, const F& of_peer, void* result) {
  inputs_.clear();
  for (int r = 0; r < group_.size(); ++r) inputs_.push_back(r == group_.rank ? own.data : of_peer(peer_of(r)));
  reduce_in_rank_order(op, own.dtype, inputs_, {&result, 1}, own.numel());
}

// ---- with the progress token

void MpiCollective::advance() {
  progress_.set_in_flight(*this, true);
  const int tag = mpi_tag(group_, MpiTag::call);
  for_each_peer([&](int p) {
    Peer& peer = peer_of(p);
    progress_.mpi().post_recv(*this, p * kSlots + kHeaderIn, 0, &peer.in, MpiHeader::kBytes, group_.world_rank(p), tag);
    progress_.mpi().post_send(*this, p * kSlots + kHeaderOut, 0, &peer.out, MpiHeader::bytes(peer.out_payload),
                              group_.world_rank(p), tag);
  });
  for_each_peer([&](int p) { pump(p); });
}

void MpiCollective::pump(int p) {
  Peer& peer = peer_of(p);
  for (int kind = 0; kind < kStreams; ++kind) {
    ChunkStream& stream = peer.streams[kind];
    const bool in = kind == scatter_in || kind == gather_in;
    // Don't post a receive until the header has shown that the peer is making the same call.
    if (in && !peer.header_arrived) continue;
    int64_t limit = std::min(stream.chunks, stream.done + kWindow);
    if (!in && between_hosts_ && headers_missing_ > 0) limit = std::min(limit, kEarlyChunks);
    if (stream.gate) limit = std::min(limit, *stream.gate + stream.slack);
    const int tag = mpi_tag(group_, kind == scatter_in || kind == scatter_out ? MpiTag::scatter : MpiTag::gather);
    for (; stream.posted < limit; ++stream.posted) {
      const int64_t c = stream.posted, bytes = std::min(stream.chunk, stream.bytes - c * stream.chunk);
      std::byte* data = stream.base + (stream.ring ? c % kBounceWindow : c) * stream.chunk;
      if (in) progress_.mpi().post_recv(*this, p * kSlots + kind, c, data, bytes, group_.world_rank(p), tag);
      else progress_.mpi().post_send(*this, p * kSlots + kind, c, data, bytes, group_.world_rank(p), tag);
    }
  }
}

void MpiCollective::completed(int slot, int64_t chunk, int64_t bytes) {
  const int p = slot / kSlots, kind = slot % kSlots;
  if (kind == kHeaderIn) {
    header_arrived(p, bytes);
  } else if (kind < kStreams) {
    ChunkStream& stream = peer_of(p).streams[kind];
    stream.early |= 1u << (chunk - stream.done);
    const int ready = std::countr_one(stream.early);
    stream.early >>= ready;
    stream.done += ready;
    if (kind == scatter_in && ready > 0) add_arrived();
  }
  if (kind != kHeaderOut) pump(p);
  count_down();
}

// Adds the chunks that have arrived from all peers. That frees their slots in the bounce buffer and lets an all_reduce
// send the sums.
void MpiCollective::add_arrived() {
  int64_t arrived = INT64_MAX;
  for_each_peer([&](int p) { arrived = std::min(arrived, peer_of(p).streams[scatter_in].done); });
  if (arrived == sum_.done) return;
  for (; sum_.done < arrived; ++sum_.done) {
    const int64_t offset = sum_.done * sum_.chunk, bounced = sum_.done % kBounceWindow * sum_.chunk;
    const int64_t numel = std::min(sum_.chunk, sum_.bytes - offset) / size_of(sum_.dtype);
    add_in_rank_order(
        sum_.op, {sum_.own + offset, sum_.dtype, {numel}},
        [bounced](const Peer& peer) { return peer.streams[scatter_in].base + bounced; }, sum_.result + offset);
  }
  for_each_peer([&](int p) { pump(p); });
}

void MpiCollective::header_arrived(int p, int64_t bytes) {
  Peer& peer = peer_of(p);
  check(bytes >= MpiHeader::bytes(0), "group '" + group_.name + "': a message of " + std::to_string(bytes) +
                                          " bytes from rank " + std::to_string(group_.world_rank(p)) +
                                          " is not a header of this program");
  if (peer.in.signature != signature_) {
    // Name the lower rank first, so that both ranks report the same error.
    const int mine = group_.world_rank(), theirs = group_.world_rank(p);
    if (mine < theirs) fail_mismatch(group_.name, mine, signature_, theirs, peer.in.signature);
    fail_mismatch(group_.name, theirs, peer.in.signature, mine, signature_);
  }
  check(bytes == MpiHeader::bytes(peer.in_payload), "the header's payload has an unexpected size");
  peer.header_arrived = true;
  const bool one_clock = progress_.mpi().one_clock();
  if (one_clock) matched_ns_ = std::max(matched_ns_, peer.in.called_ns);
  if (--headers_missing_ > 0) return;
  if (!one_clock) matched_ns_ = now_ns();
  if (between_hosts_) for_each_peer([&](int other) { pump(other); });
}

void MpiCollective::count_down() {
  if (--remaining_ > 0) return;
  progress_.set_in_flight(*this, false);
  end();
}

void MpiCollective::rank_ended(int world_rank) {
  for_each_peer([&](int p) {
    if (group_.world_rank(p) == world_rank && !peer_of(p).header_arrived)
      fail("group '" + group_.name + "': rank " + std::to_string(group_.world_rank()) + " waits in " +
           to_string(signature_) + ", but rank " + std::to_string(world_rank) + " has ended without that call");
  });
}

}  // namespace trivet
