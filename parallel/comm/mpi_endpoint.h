// MpiEndpoint: MPI itself, and the messages of this process that are under way. All of it is called by one thread at a
// time: the one in the seat of MpiProgress, which starts and stops it on the progress thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace trivet {

class MpiTask;

class MpiEndpoint {
 public:
  MpiEndpoint();
  ~MpiEndpoint();  // makes no MPI call

  void start();               // MPI_Init_thread
  void stop();                // MPI_Finalize
  void abort(int exit_code);  // MPI_Abort: does not return

  // Constant once it is started: any thread.
  int rank() const { return rank_; }
  int size() const { return size_; }
  int max_tag() const { return max_tag_; }

  void post_send(MpiTask& task, int slot, int64_t chunk, const void* data, int64_t bytes, int to, int tag);
  void post_recv(MpiTask& task, int slot, int64_t chunk, void* data, int64_t bytes, int from, int tag);
  // Calls completed() of the tasks whose messages are done. Whether there were any.
  bool poll();

 private:
  struct Messages;  // MPI's types stay in the .cc

  std::unique_ptr<Messages> messages_;
  int rank_ = 0, size_ = 1, max_tag_ = 0;
};

}  // namespace trivet
