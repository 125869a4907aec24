// Communicator: one group of ranks and the collectives over it.
//
// Calls enqueue on `stream` and return; data is ready when the stream gets there. On an inline CPU stream that is when
// the call returns. All ranks of a group make the same calls, with equal sizes, in the same order. A Communicator is
// used by one stream at a time, and its group shares nothing with other groups: two communicators make progress
// independently.
//
// A send is buffered: it never waits for its receiver, so two ranks may send to each other before they receive. (The
// CPU back ends; on a GPU a stream may wait, and ranks that send to each other, or in a ring, call exchange().)
//
// Sums are taken in rank order in fp32, (((x0 + x1) + x2) + …), and rounded once for bf16: each element's owner
// receives the other ranks' pieces and adds them in order. So a sum does not depend on how a buffer is cut into calls,
// two runs agree bitwise, and every back end agrees with every other.
//
// Ranks compare what they call before data moves: another call, size, type or root on another rank is an Error that
// names both. A failure on any rank of the world makes every waiting call on every rank throw Error: no rank hangs.
//
// The span of a call carries the bytes of `full`, `data` or the tensor sent, and when it was matched: when all ranks
// had called, as this rank heard of it. (A send is matched by nobody.) A group of one rank moves nothing and leaves no
// span, save for the copy between a shard and a disjoint `full`.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/base/device.h"
#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace trivet {

enum class Reduce { sum, max, average };  // average: the sum, divided by the number of ranks

// The first failure of a world. rank -1: none.
struct Failure {
  int rank = -1;
  std::string why{};
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // full[i] = sum (maximum, average) over ranks of their full[i]. fp32, bf16, or but for the average int64.
  virtual void all_reduce(Tensor full, Reduce op, Stream& stream) = 0;
  // shard = this rank's 1/size() slice of the sum. REQUIRES: full.numel() == size() * shard.numel(); shard is that
  // slice of `full` itself, or disjoint. The rest of `full` is left as it was.
  virtual void reduce_scatter(Tensor full, Tensor shard, Reduce op, Stream& stream) = 0;
  // full = the shards of all ranks in rank order. REQUIRES: as above. A shard that is part of `full` is only read:
  // others may read it meanwhile, too.
  virtual void all_gather(Tensor shard, Tensor full, Stream& stream) = 0;
  virtual void broadcast(Tensor data, int root, Stream& stream) = 0;
  // Matched in order between each pair of ranks. The data may be reused when the stream is past the call.
  virtual void send(Tensor data, int to, Stream& stream) = 0;
  virtual void recv(Tensor data, int from, Stream& stream) = 0;
  // Both at once: neither waits for the other. (As it stands here where sends are buffered; a communicator over one of
  // another kind passes it on.)
  virtual void exchange(Tensor out, int to, Tensor in, int from, Stream& stream) {
    send(out, to, stream);
    recv(in, from, stream);
  }

  // Memory of the device that a group can be told of, so that it moves what lies there without copying it first (NCCL's
  // user buffers); null: there is none such. Of all groups of this world, and outlives them.
  virtual Memory* buffer_memory() { return nullptr; }
  // Tells it: `memory`, of buffer_memory(), has operands of this group's later calls, at the same offset on every rank.
  // Until the handle ends, which comes before the memory goes back.
  virtual std::shared_ptr<void> register_buffer([[maybe_unused]] Tensor memory) { return nullptr; }

  virtual void barrier() = 0;  // of the host threads, not of a stream

  // Ranks that pass the same `color` form the new group, ordered by `key`, then by rank. Every rank of this group
  // calls it, with no other call of this group under way. `name` and `category` are for the trace and for errors.
  virtual std::unique_ptr<Communicator> split(int color, int key, std::string name, Category category) = 0;

  // This rank gives up: its waiting and later calls in all groups throw Error with `why`, and the world ends. Any
  // thread may call it (a watchdog; FailureGuard).
  virtual void abort(const std::string& why) noexcept = 0;
  // Which rank of the world has failed first; of MPI's ranks each knows only of itself. Any thread.
  virtual Failure failure() const { return {}; }
  // `witness` names the call that this rank is in; it is asked, on any thread, before such calls are broken off.
  virtual void set_witness(std::function<std::string()> /*witness*/) {}
};

}  // namespace trivet
