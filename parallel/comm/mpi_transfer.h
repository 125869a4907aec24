// Sends and receives of the MPI back end. A send copies its data into a pooled buffer and returns; MpiProgress delivers
// it. A receive waits for the sender's header, compares signatures, and receives the data straight into its tensor.
#pragma once

#include <memory>
#include <vector>

#include "parallel/comm/mpi_group.h"
#include "parallel/comm/mpi_progress.h"

namespace trivet {

class MpiSend;

// All sends of a process, so that a send may outlive its communicator. Grows to the most ever in flight.
class MpiSendPool {
 public:
  explicit MpiSendPool(MpiProgress& progress);
  ~MpiSendPool();
  // Returns when the data may be reused, possibly before it arrives. One caller at a time per group and peer.
  void send(const CommGroup& group, int to, const CallSignature& signature, const void* data);

 private:
  MpiSend& take(int64_t bytes);

  MpiProgress& progress_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<MpiSend>> sends_;
};

class MpiReceive : public MpiTask {
 public:
  MpiReceive(MpiProgress& progress, const CommGroup& group) : MpiTask(progress), group_(group) {}
  // Waits for the data; returns the time when it could begin to move: within a host, when both ends had called, as MPI
  // copies then; between hosts, when it was sent or, if no clock is shared, when its header came. One caller at a time.
  int64_t receive(int from, const CallSignature& signature, void* data);

  void advance() override;
  void completed(int slot, int64_t chunk, int64_t bytes) override;
  void rank_ended(int world_rank) override;

 private:
  void post_chunks();

  const CommGroup& group_;
  int from_ = -1;
  CallSignature expected_;
  std::byte* data_ = nullptr;
  MpiHeader header_;
  bool header_arrived_ = false;
  int64_t moves_ns_ = 0;
  int64_t posted_ = 0, received_ = 0, chunks_ = 0;
};

}  // namespace trivet
