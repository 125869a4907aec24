// Communicator: one group of ranks and the collectives over it.
//
// Calls enqueue on `stream` and return; the result is ready when the stream reaches them (on an inline CPU stream,
// when the call returns). All ranks of a group make the same calls, with equal sizes, in the same order. A Communicator
// is used by one stream at a time; different communicators make progress independently.
//
// A send is buffered: two ranks may send to each other before they receive. On a GPU a send may wait for its receiver,
// so ranks that send to each other, or in a ring, must call exchange().
//
// Sums are taken in rank order in fp32, (((x0 + x1) + x2) + …), and rounded once for bf16. So a sum does not depend on
// how a buffer is split into calls, two runs agree bitwise, and so do all back ends but NCCL (nccl_comm.h).
//
// Ranks compare their calls before data moves: a different call, size, type or root on a peer throws an Error that
// names both. A failure on any rank of the world makes every waiting call on every rank throw Error: no rank hangs.
//
// A call's span carries the bytes of `full`, `data` or the tensor sent, their cost on the wire, and when the call was
// on the wire (trace.h), as its transport reports it. Between threads or MPI processes, a collective's wire time begins
// when all ranks have called it, and a transfer's with its send. In a group of one rank, a call at most copies; one
// that copies nothing leaves no span.
//
// The Communicator itself implements what all back ends (back_end.h) share: argument checks, spans, flight recording
// (flight_recorder.h), link emulation (link.h) and fault injection (call.h).
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

  // full[i] = sum (maximum, average) over ranks of full[i]. fp32 and bf16; int64 except for the average.
  void all_reduce(Tensor full, Reduce op, Stream& stream) {
    call({.kind = CommCall::all_reduce, .in = full, .out = full, .op = op}, stream);
  }
  // shard = this rank's 1/size() slice of the sum. REQUIRES: full.numel() == size() * shard.numel(); shard is that
  // slice of `full` itself, or disjoint. The rest of `full` is not changed.
  void reduce_scatter(Tensor full, Tensor shard, Reduce op, Stream& stream) {
    call({.kind = CommCall::reduce_scatter, .in = full, .out = shard, .op = op}, stream);
  }
  // full = the shards of all ranks in rank order. REQUIRES: as above. A shard that is part of `full` is only read.
  void all_gather(Tensor shard, Tensor full, Stream& stream) {
    call({.kind = CommCall::all_gather, .in = shard, .out = full}, stream);
  }
  void broadcast(Tensor data, int root, Stream& stream) {
    call({.kind = CommCall::broadcast, .in = data, .out = data, .peer = root}, stream);
  }
  // Sends and receives between each pair of ranks match in order.
  void send(Tensor data, int to, Stream& stream) {
    call({.kind = CommCall::transfer, .in = data, .peer = to, .sends = true}, stream);
  }
  void recv(Tensor data, int from, Stream& stream) {
    call({.kind = CommCall::transfer, .out = data, .peer = from}, stream);
  }
  // A send and a receive that do not wait for each other.
  void exchange(Tensor out, int to, Tensor in, int from, Stream& stream);
  // Any of the above except exchange(), as a Call.
  void call(Call call, Stream& stream);

  // Allocates memory that can be registered, which saves copies (NCCL's user buffers); null: not supported. All groups
  // of this world share it, and it outlives them.
  Memory* buffer_memory() { return back_end_->buffer_memory(); }
  // Registers `memory`, allocated from buffer_memory(), for this group's later calls. Their operands must have the same
  // offset in it on every rank. Destroying the handle deregisters it, which must precede freeing the memory.
  std::shared_ptr<void> register_buffer(Tensor memory) { return back_end_->register_buffer(memory); }

  // While on, device calls of this group and of all groups that were split from it are only prepared, not
  // queued. Called by the thread that makes the calls.
  void only_prepare(bool on) { *tools_.only_prepares = on; }

  void barrier();  // of the host threads, not of a stream

  // Returns a group of the ranks that `members` lists (numbered as in this group), in that order; null on other
  // ranks. Collective over this group; all members of a new group pass the same list. `name` and `category` are for the
  // trace and for errors.
  std::unique_ptr<Communicator> split(const std::vector<int>& members, std::string name, Category category);
  // Returns another group of the same ranks.
  std::unique_ptr<Communicator> twin(std::string name, Category category);

  // Fails this rank: its waiting and later calls in all groups throw Error with `why`, and the world ends. Any thread.
  void abort(const std::string& why) noexcept { back_end_->abort(why); }
  // The first failure in the world; an MPI rank knows only its own. Any thread.
  Failure failure() const { return back_end_->failure(); }

 private:
  friend std::unique_ptr<Communicator> with_flight_recorder(Communicator&, FlightRecorder&, CallFaults*);
  friend std::unique_ptr<Communicator> with_links(Communicator&, const Links&, bool);

  // Inherited by groups that are split off.
  struct Tools {
    FlightRecorder* recorder = nullptr;  // null: no records
    int recorder_group = 0;
    std::shared_ptr<DeviceCalls> device_calls{};  // with a recorder, on a device
    CallFaults* faults = nullptr;                 // null: none
    std::shared_ptr<EmulatedLinks> links{};       // for groups that are split off; null: none
    Link link{};                                  // of this group
    std::shared_ptr<bool> only_prepares = std::make_shared<bool>(false);
  };
  Communicator(std::shared_ptr<CommBackEnd> back_end, Tools tools);

  void check_arguments(const Call& call) const;
  bool prepared(const Call& call);  // if true, the call needs no further work
  void queue(const Call& call, Stream& stream);
  void copy_alone(const Call& call, Stream& stream);
  int enter(const Call& call);  // adds it to the flight record; returns its slot
  template <class F>
  void recorded(int slot, F&& f);

  std::shared_ptr<CommBackEnd> back_end_;
  HostBackEnd* host_;      // back_end_, or null
  DeviceBackEnd* device_;  // likewise
  Tools tools_;
  int64_t extra_ = 0;  // the operand of an injected extra call on a host
};

}  // namespace trivet
