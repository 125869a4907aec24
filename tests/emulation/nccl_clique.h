// State shared by the ranks of one emulated NCCL communicator (nccl.cc): the ranks that have joined, connections, and
// the operations in which the ranks' streams meet. Ranks are threads of one process, and its memory is their devices'
// memory. Everything happens under one mutex, so an aborted rank's memory is never touched again.
//
// Results match NCCL's where a caller could tell: a bf16 sum is rounded after each addition, an average multiplies by
// 1/n before it adds, and a maximum ignores NaN. Additions are in rank order, which NCCL does not promise.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <nccl.h>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace trivet::emulation {

enum class NcclCall : uint8_t { all_reduce, reduce_scatter, all_gather, broadcast, send, receive };

struct NcclOperation {
  NcclCall call = NcclCall::all_reduce;
  const void* in = nullptr;
  void* out = nullptr;
  size_t count = 0;  // as in the NCCL call: of a shard, if there are shards
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t reduce = ncclSum;
  int peer = -1;                          // the root, or the other rank of a transfer
  std::optional<size_t> registered_at{};  // the offset of a collective's whole tensor in a registered buffer
  uint64_t number = 0;                    // counts this rank's collectives, or its sends to (or receives from) `peer`

  bool is_transfer() const { return call == NcclCall::send || call == NcclCall::receive; }
  size_t bytes() const;  // for `count` elements
};

size_t bytes_of(ncclDataType_t type);  // 0: not emulated

class NcclClique {
 public:
  // `name`: the communicator's name, by which a fault selects it.
  NcclClique(int size, const std::string& name);
  int size() const { return size_; }

  // ---- called by host threads

  // A rank joins, with its own GPU. Any disagreement is an error on all ranks.
  void join(int rank, int size, int device);
  bool complete();
  // Marks that the rank will use the operation's connections; returns whether they already existed. A transfer is
  // connected when both ranks have asked, a kind of collective when all have.
  bool connect(int rank, const NcclOperation& operation);
  bool connected(int rank, const NcclOperation& operation);
  void finalize(int rank);
  bool all_finalized();
  uint64_t ticket(int rank);  // for the rank's next run(), in order
  bool idle(int rank);        // all calls with a ticket have finished, or the rank has aborted
  // Ends the rank's waits; its memory is never touched again.
  void abort(int rank);
  ncclResult_t error(int rank);
  const char* error_text() const { return text_.c_str(); }  // valid once error() is not success

  // ---- called by streams

  // Runs the rank's operations of one call or group, which make progress together. Calls run in order of `ticket`,
  // whatever their streams. After an error, the rank waits until it aborts. Operations start when the device has `ctas`
  // free multiprocessors, and hold them until they finish.
  void run(int rank, uint64_t ticket, const std::vector<NcclOperation>& operations, int ctas);

 private:
  struct Meeting {  // all ranks in a collective
    std::map<int, NcclOperation> calls;
    bool done = false;
    int left = 0;
  };
  struct Transfer {
    std::optional<NcclOperation> send, receive;
    bool done = false;
  };
  using Lock = std::unique_lock<std::mutex>;
  using Connection = std::tuple<int, int, int>;

  Connection connection_of(int rank, const NcclOperation& operation) const;
  bool is_made(const Connection& connection);
  void run(Lock& lock, int rank, uint64_t ticket, const std::vector<NcclOperation>& operations);
  template <class Condition>
  bool wait(Lock& lock, int rank, const Condition& condition);
  std::shared_ptr<Transfer> post(int rank, const NcclOperation& operation);
  bool meet(Lock& lock, int rank, const NcclOperation& operation);
  void move(Meeting& meeting);
  void set_error(ncclResult_t result, const std::string& text);  // REQUIRES: mutex_

  struct Fault {  // a call that never happens: its rank gets ncclRemoteError instead, or no error
    int rank = -1;
    uint64_t ticket = 0;
    bool silent = false;
  };
  static Fault fault_of(const std::string& name);

  const int size_;
  const std::string name_;
  const Fault fault_;
  const bool connects_early_;  // NCCL_RUNTIME_CONNECT=0: collectives connect when the communicator is created
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, int> devices_;  // of the ranks that have joined
  std::map<Connection, std::set<int>> connections_;
  std::set<int> aborted_, finalized_;
  std::vector<uint64_t> tickets_, turns_;  // [rank]: tickets issued, and tickets finished
  std::map<uint64_t, Meeting> meetings_;
  std::map<std::tuple<int, int, uint64_t>, std::shared_ptr<Transfer>> transfers_;
  ncclResult_t error_ = ncclSuccess;
  bool fault_struck_ = false;  // only the faulty rank gets the error
  std::string text_;
};

}  // namespace trivet::emulation
