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
// two runs agree bitwise, and every back end agrees with every other. (NCCL departs from this and more: nccl_comm.h.)
//
// Ranks compare what they call before data moves: another call, size, type or root on another rank is an Error that
// names both. A failure on any rank of the world makes every waiting call on every rank throw Error: no rank hangs.
//
// The span of a call carries the bytes of `full`, `data` or the tensor sent, and when it was matched: when all ranks
// had called, as this rank heard of it. (A send is matched by nobody.) A group of one rank moves nothing and leaves no
// span, save for the copy between two tensors.
//
// Here stands, once, what is around a call whatever moves the data (back_end.h): the checks of its arguments, its span,
// its flight record (flight_recorder.h), its emulated link (link.h), and injected faults (call_faults.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/back_end.h"
#include "parallel/comm/link.h"

namespace trivet {

class CallFaults;
class DeviceCalls;
class FlightRecorder;

class Communicator {
 public:
  explicit Communicator(std::shared_ptr<CommBackEnd> back_end);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const CommGroup& group() const { return back_end_->group; }
  int rank() const { return group().rank; }
  int size() const { return group().size(); }

  // full[i] = sum (maximum, average) over ranks of their full[i]. fp32, bf16, or but for the average int64.
  void all_reduce(Tensor full, Reduce op, Stream& stream);
  // shard = this rank's 1/size() slice of the sum. REQUIRES: full.numel() == size() * shard.numel(); shard is that
  // slice of `full` itself, or disjoint. The rest of `full` is left as it was.
  void reduce_scatter(Tensor full, Tensor shard, Reduce op, Stream& stream);
  // full = the shards of all ranks in rank order. REQUIRES: as above. A shard that is part of `full` is only read:
  // others may read it meanwhile, too.
  void all_gather(Tensor shard, Tensor full, Stream& stream);
  // Of size() equal parts of each, part r of `to` = rank r's part rank() of `from`. REQUIRES: equal types and sizes, a
  // multiple of size(); disjoint.
  void all_to_all(Tensor from, Tensor to, Stream& stream);
  void broadcast(Tensor data, int root, Stream& stream);
  // Matched in order between each pair of ranks. The data may be reused when the stream is past the call.
  void send(Tensor data, int to, Stream& stream);
  void recv(Tensor data, int from, Stream& stream);
  // Both at once: neither waits for the other.
  void exchange(Tensor out, int to, Tensor in, int from, Stream& stream);
  // Any of these but exchange, described.
  void call(Call call, Stream& stream);

  // Memory of the device that a group can be told of, so that it moves what lies there without copying it first (NCCL's
  // user buffers); null: there is none such. Of all groups of this world, and outlives them.
  Memory* buffer_memory() { return back_end_->buffer_memory(); }
  // Tells it: `memory`, of buffer_memory(), has operands of this group's later calls, at the same offset on every rank.
  // Until the handle ends, which comes before the memory goes back.
  std::shared_ptr<void> register_buffer(Tensor memory) { return back_end_->register_buffer(memory); }

  void barrier();  // of the host threads, not of a stream

  // A group of those ranks of this one that `members` lists, in that order; null where this rank is not among them.
  // Every rank of this group calls it, with no other call of this group under way, and all members of a new group list
  // the same. `name` and `category` are for the trace and for errors.
  std::unique_ptr<Communicator> split(const std::vector<int>& members, std::string name, Category category);
  // All ranks of this group once more.
  std::unique_ptr<Communicator> twin(std::string name, Category category);

  // This rank gives up: its waiting and later calls in all groups throw Error with `why`, and the world ends. Any
  // thread may call it (a watchdog; FailureGuard).
  void abort(const std::string& why) noexcept { back_end_->abort(why); }
  // Which rank of the world has failed first; of MPI's ranks each knows only of itself. Any thread.
  Failure failure() const { return back_end_->failure(); }

 private:
  friend std::unique_ptr<Communicator> with_flight_recorder(Communicator&, FlightRecorder&, CallFaults*);
  friend std::unique_ptr<Communicator> with_links(Communicator&, const Links&);

  // What stands around this group's calls. Groups that are split off inherit it.
  struct Tools {
    FlightRecorder* recorder = nullptr;  // null: nobody records
    int recorder_group = 0;
    std::shared_ptr<DeviceCalls> device_calls{};  // with a recorder, on a device
    CallFaults* faults = nullptr;                 // null: none
    std::shared_ptr<EmulatedLinks> links{};       // of the groups to come; null: none
    Link link{};                                  // of this one
  };
  Communicator(std::shared_ptr<CommBackEnd> back_end, Tools tools);

  void check_arguments(const Call& call) const;
  void queue(const Call& call, Stream& stream);
  void copy_alone(const Call& call, Stream& stream);
  int enter(const Call& call);  // in the flight record; the result names it
  template <class F>
  void recorded(int slot, F&& f);

  std::shared_ptr<CommBackEnd> back_end_;
  HostBackEnd* host_;      // it is the one
  DeviceBackEnd* device_;  // or the other
  Tools tools_;
  int64_t extra_ = 0;  // what an injected call too many is made with on a host
};

}  // namespace trivet
