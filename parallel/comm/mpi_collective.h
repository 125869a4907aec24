// MpiCollective: runs one group's collectives over point-to-point messages, one at a time.
//
// Every call starts with a header from each rank to all others: the call's signature, and the data if it is small.
// Large data follows in chunks, directly between tensors unless it is summed. Each slice of a sum is sent to its
// owner only: the traffic equals a ring's, but the owner receives every rank's slice and adds them in rank order.
//
//   reduce_scatter  scatter: slice p is sent to rank p; the peers' terms of this rank's slice arrive in a bounce buffer
//   all_gather      gather: the shard is sent to all
//   all_reduce      both; a chunk is gathered as soon as its sum is complete
//   broadcast       gather from the root
//
// Between hosts, only one chunk is sent to each peer before all ranks' headers have arrived; it keeps the link busy
// until then. More chunks would move before the last rank calls, that is, before the call's span begins: the span would
// be shorter than the transfer. Within a host, MPI copies a chunk on the receiver's request, which follows the header.
//
// The thread that moves the messages (mpi_progress.h; mostly the caller itself) adds a chunk as soon as all its terms
// have arrived, while they are in its cache. A separate thread was slower: it costs two context switches per chunk.
#pragma once

#include <array>
#include <vector>

#include "base/piece.h"
#include "parallel/comm/mpi_group.h"
#include "parallel/comm/mpi_progress.h"

namespace trivet {

class MpiCollective : public MpiTask {
 public:
  MpiCollective(MpiProgress& progress, const CommGroup& group);

  // The size in bytes of the chunks of a sum whose slices have `bytes` bytes.
  static int64_t sum_chunk(int64_t bytes, int ranks);
  static constexpr int64_t kMostBounce = 16 << 20;  // bytes of a group's bounce buffer, for all peers together

  // Any call but a transfer; a split gathers Call::in. One caller at a time; returns when this rank is done. REQUIRES:
  // more than one rank.
  void perform(const Call& call, const CallSignature& mine);
  // When the last rank made the latest call; if the ranks do not share a clock, when this rank learnt of it.
  int64_t matched_ns() const { return matched_ns_; }

  void advance() override;
  void completed(int slot, int64_t chunk, int64_t bytes) override;
  void rank_ended(int world_rank) override;

 private:
  // One direction of one phase between this rank and a peer: chunks of contiguous memory, or of a ring of kBounceWindow
  // chunks. A gated stream waits for another stream, or for sums.
  struct ChunkStream {
    std::byte* base = nullptr;
    int64_t bytes = 0, chunk = 1, chunks = 0;
    bool ring = false;
    const int64_t* gate = nullptr;  // chunks below *gate + slack may be posted
    int64_t slack = 0;
    int64_t posted = 0, done = 0;  // done: all chunks below it are complete
    uint64_t early = 0;            // bit i: chunk done + i is complete
  };
  enum StreamKind { scatter_out, scatter_in, gather_out, gather_in, kStreams };
  static constexpr int kHeaderOut = kStreams, kHeaderIn = kStreams + 1, kSlots = kStreams + 2;
  struct Peer {
    std::array<ChunkStream, kStreams> streams;
    MpiHeader out, in;
    int64_t out_payload = 0, in_payload = 0;  // bytes
    bool header_arrived = false;
  };
  // The sum of the scatter streams' chunks.
  struct Sum {
    std::byte *own = nullptr, *result = nullptr;
    int64_t bytes = 0, chunk = 1;
    DType dtype = DType::f32;
    Reduce op = Reduce::sum;
    int64_t done = 0;  // chunks
  };
  // Maximum messages in flight per stream: many between tensors, so that a descheduled rank does not hold up its peer;
  // few through the bounce buffer, so that it stays in cache.
  static constexpr int64_t kWindow = piece(32, 3), kBounceWindow = piece(4, 2), kEarlyChunks = 1;

  // On the caller's thread.
  void all_reduce(Tensor full, Reduce op);
  void reduce_scatter(Tensor full, Tensor shard, Reduce op);
  void all_gather(Tensor shard, Tensor full);
  void broadcast(Tensor data, int root);
  // Sends the bytes at `from` to each peer, and receives the same number from peer p at in(p). Null: no transfer.
  template <class In>
  void swap(int64_t bytes, std::byte* from, const In& in);
  void run_call();
  void set_payload(int peer, const void* data, int64_t bytes);
  void set_stream(int peer, StreamKind kind, void* base, int64_t bytes, int64_t chunk);
  void set_scatter_streams(std::byte* full, int64_t numel, int64_t element, int64_t chunk);
  void add_payloads(Reduce op, Tensor own, Tensor result);
  template <class F>
  void add_in_rank_order(Reduce op, Tensor own, const F& of_peer, void* result);

  // Called with the progress token held.
  void pump(int peer);
  void header_arrived(int peer, int64_t bytes);
  void add_arrived();
  void count_down();

  Peer& peer_of(int rank) { return peers_[static_cast<size_t>(rank)]; }
  template <class F>
  void for_each_peer(F&& f) {  // starts after this rank, so that ranks do not all address the same peer
    for (int i = 1; i < group_.size(); ++i) f((group_.rank + i) % group_.size());
  }

  const CommGroup& group_;
  std::vector<Peer> peers_;  // [rank]; this rank's own is unused
  CallSignature signature_;
  GrowOnlyBuffer bounce_;
  std::vector<const void*> inputs_;  // of one reduction; a member, so that calls do not allocate
  Sum sum_;
  int64_t remaining_ = 0;  // incomplete messages of this call
  int headers_missing_ = 0;
  int64_t matched_ns_ = 0;  // final once no header is missing
  bool between_hosts_ = false;
};

}  // namespace trivet
