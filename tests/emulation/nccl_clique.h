// What the ranks of one emulated NCCL communicator (nccl.cc) share: who has come, which connections there are, and the
// operations in which the streams of the ranks meet. Ranks are threads of one process and their devices' memory is the
// process's own. Everything happens under one mutex, so a rank that has aborted is never touched again.
//
// Numbers are NCCL's where a caller could tell: a bf16 sum is rounded after each addition, an average multiplies by 1/n
// before it adds, and a maximum passes over NaN. Additions are in rank order, which NCCL does not promise.
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
  size_t count = 0;  // as the call of NCCL counts: of a shard, where there are shards
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t reduce = ncclSum;
  int peer = -1;                          // the root, or the other rank of a transfer
  std::optional<size_t> registered_at{};  // the offset of a collective's whole tensor in a registered buffer
  uint64_t number = 0;                    // of this rank's collectives, or of the transfers between these two

  bool is_transfer() const { return call == NcclCall::send || call == NcclCall::receive; }
  size_t bytes() const;  // of `count` elements
};

size_t bytes_of(ncclDataType_t type);  // 0: not emulated

class NcclClique {
 public:
  // `name`: of the communicator, by which a fault finds it.
  NcclClique(int size, const std::string& name);
  int size() const { return size_; }

  // ---- of the host's threads

  // A rank is there, with a GPU of its own. Any disagreement is an error of all.
  void join(int rank, int size, int device);
  bool complete();
  // The rank is about to use the connections that the operation goes over; true where they have been made before. A
  // transfer is connected when both ranks have asked, a kind of collective when all have.
  bool connect(int rank, const NcclOperation& operation);
  bool connected(int rank, const NcclOperation& operation);
  void finalize(int rank);
  bool all_finalized();
  uint64_t ticket(int rank);  // of the rank's next run(): these are counted
  bool idle(int rank);        // all that have a ticket are done, or the rank has aborted
  // Ends what the rank waits in; its memory is not touched any more.
  void abort(int rank);
  ncclResult_t error(int rank);
  const char* error_text() const { return text_.c_str(); }  // once error() is not success

  // ---- of the streams

  // The rank's operations of one call or group, which make progress together. `ticket` counts these: they run one after
  // another, on whichever stream. Where there is an error, the rank waits until it aborts. They start when the device
  // has `ctas` multiprocessors for them, which they hold until they are over.
  void run(int rank, uint64_t ticket, const std::vector<NcclOperation>& operations, int ctas);

 private:
  struct Meeting {  // of all ranks in a collective
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

  struct Fault {  // one call that never happens: of this rank, which has ncclRemoteError instead, or nothing
    int rank = -1;
    uint64_t ticket = 0;
    bool silent = false;
  };
  static Fault fault_of(const std::string& name);

  const int size_;
  const std::string name_;
  const Fault fault_;
  const bool connects_early_;  // NCCL_RUNTIME_CONNECT=0: collectives, when the communicator is made
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, int> devices_;  // of the ranks that have joined
  std::map<Connection, std::set<int>> connections_;
  std::set<int> aborted_, finalized_;
  std::vector<uint64_t> tickets_, turns_;  // [rank] how many there are, and how many of them are over
  std::map<uint64_t, Meeting> meetings_;
  std::map<std::tuple<int, int, uint64_t>, std::shared_ptr<Transfer>> transfers_;
  ncclResult_t error_ = ncclSuccess;
  bool fault_struck_ = false;  // the error is of the one rank
  std::string text_;
};

}  // namespace trivet::emulation
