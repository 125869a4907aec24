// MpiEndpoint: wraps MPI and tracks this process's messages in flight. Only the thread that holds the progress token of
// MpiProgress may call it; start() and stop() are for the progress thread.
#pragma once

#include <cstdint>
#include <mpi.h>
#include <vector>

namespace trivet {

class MpiTask;

class MpiEndpoint {
 public:
  void start();               // MPI_Init_thread
  void stop();                // MPI_Finalize
  void abort(int exit_code);  // MPI_Abort: does not return

  // Constant after start(), so any thread may call these.
  int rank() const { return rank_; }
  int size() const { return size_; }
  int max_tag() const { return max_tag_; }
  bool one_clock() const { return one_clock_; }  // all ranks share now_ns()
  // True if MPI copies from that rank's memory to this rank's once both have called; otherwise sends start immediately.
  bool shares_memory(int rank) const { return shares_memory_[static_cast<size_t>(rank)] != 0; }

  void post_send(MpiTask& task, int slot, int64_t chunk, const void* data, int64_t bytes, int to, int tag);
  void post_recv(MpiTask& task, int slot, int64_t chunk, void* data, int64_t bytes, int from, int tag);
  // Calls completed() on its task for each finished message. Returns true if there were any.
  bool poll();

 private:
  struct Owner {
    MpiTask* task;
    int slot;
    int64_t chunk;
  };
  MPI_Request* add(const Owner& owner);
  void find_neighbours();

  MPI_Comm comm_ = MPI_COMM_NULL;  // a duplicate, so that a benchmark's messages stay separate
  std::vector<MPI_Request> requests_;
  std::vector<Owner> owners_;  // [request]
  std::vector<int> indices_;   // used by poll(), like statuses_
  std::vector<MPI_Status> statuses_;
  int rank_ = 0, size_ = 1, max_tag_ = 0;
  bool one_clock_ = false;
  std::vector<char> shares_memory_;  // [rank]
};

}  // namespace trivet
