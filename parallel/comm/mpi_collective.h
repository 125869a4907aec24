// MpiCollective: the collectives of one group over point-to-point messages, one at a time.
//
// Every call starts with a header from each rank to each other rank: what it calls, and small data along with it. Large
// data follows in chunks, straight between the ranks' tensors where nothing is added, and each slice travels to its
// owner only: as many bytes as a ring moves, but the owner has all the pieces and adds them in rank order.
//
//   reduce_scatter  scatter: my slice p goes to rank p; the pieces of my slice arrive in a small bounce buffer
//   all_gather      gather: my shard goes to all
//   all_to_all      gather, of another part for each
//   all_reduce      both; a chunk is gathered as soon as its sum is there
//   broadcast       gather from the root
//
// The thread that moves the messages (mpi_progress.h; mostly the caller itself) adds a chunk as soon as its pieces are
// here, while they are in its cache. Leaving that to another was slower: a rank often has one core, and a chunk then
// cost two switches of threads.
#pragma once

#include <array>
#include <vector>

#include "parallel/comm/mpi_group.h"
#include "parallel/comm/mpi_progress.h"

namespace trivet {

class MpiCollective : public MpiTask {
 public:
  MpiCollective(MpiProgress& progress, const CommGroup& group);

  // Any call but a transfer; a split gathers Call::in. One caller at a time; returns when this rank is done. REQUIRES:
  // more than one rank.
  void perform(const Call& call, const CallSignature& mine);
  // Of the last call: when the headers of all peers were here, so that all had made it.
  int64_t matched_ns() const { return matched_ns_; }

  void advance() override;
  void completed(int slot, int64_t chunk, int64_t bytes) override;
  void rank_ended(int world_rank) override;

 private:
  // One direction of one phase between this rank and a peer: chunks of contiguous memory, or of a ring of kBounceWindow
  // chunks. A gated lane may go only so far as something else has come.
  struct Lane {
    std::byte* base = nullptr;
    int64_t bytes = 0, chunk = 1, chunks = 0;
    bool ring = false;
    const int64_t* gate = nullptr;  // chunks below *gate + slack may be posted
    int64_t slack = 0;
    int64_t posted = 0, done = 0;  // done: all chunks below
    uint64_t early = 0;            // bit i: chunk done + i is complete
  };
  enum LaneKind { scatter_out, scatter_in, gather_out, gather_in, kLanes };
  static constexpr int kHeaderOut = kLanes, kHeaderIn = kLanes + 1, kSlots = kLanes + 2;
  struct Peer {
    std::array<Lane, kLanes> lanes;
    MpiHeader out, in;
    int64_t out_payload = 0, in_payload = 0;  // bytes
    bool header_arrived = false;
  };
  // The addition that the scatter lanes feed.
  struct Sum {
    std::byte *own = nullptr, *result = nullptr;
    int64_t bytes = 0, chunk = 1;
    DType dtype = DType::f32;
    Reduce op = Reduce::sum;
    int64_t done = 0;  // chunks
  };
  // Messages of a lane under way. Between tensors enough that a rank which is not running just now does not hold up the
  // other; in the bounce buffer few, so that it stays in the cache.
  static constexpr int64_t kWindow = 32, kBounceWindow = 4;

  // The caller's side.
  void all_reduce(Tensor full, Reduce op);
  void reduce_scatter(Tensor full, Tensor shard, Reduce op);
  void all_gather(Tensor shard, Tensor full);
  void all_to_all(Tensor from, Tensor to);
  void broadcast(Tensor data, int root);
  // Sends the bytes at out(p) to each peer p, and receives as many at in(p).
  template <class Out, class In>
  void swap(int64_t bytes, const Out& out, const In& in);
  void begin(const CallSignature& mine);
  void run_call();
  void give_payload(int peer, const void* data, int64_t bytes);
  void set_lane(int peer, LaneKind kind, void* base, int64_t bytes, int64_t chunk);
  void set_scatter_lanes(std::byte* full, int64_t numel, int64_t element, int64_t chunk);
  void add_payloads(Reduce op, Tensor own, Tensor result);
  int64_t chunk_for(int64_t bytes) const;

  // In the seat.
  void pump(int peer);
  void header_arrived(int peer, int64_t bytes);
  void add_arrived();
  void count_down();

  template <class F>
  void for_each_peer(F&& f) {  // starting behind this rank, so that all ranks do not crowd at one
    for (int i = 1; i < group_.size(); ++i) f((group_.rank + i) % group_.size());
  }

  const CommGroup& group_;
  std::vector<Peer> peers_;  // by rank of the group; this rank's own is unused
  CallSignature signature_;
  GrowOnlyBuffer bounce_;
  std::vector<const void*> inputs_;  // of one addition; members so that a call allocates nothing

  Sum sum_;
  int64_t remaining_ = 0;  // messages of this call that are not complete
  int headers_missing_ = 0;
  int64_t matched_ns_ = 0;
};

}  // namespace trivet
