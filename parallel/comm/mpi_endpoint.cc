#include "parallel/comm/mpi_endpoint.h"

#include <cstdlib>
#include <mpi.h>
#include <string>

#include "parallel/comm/mpi_progress.h"

namespace trivet {
namespace {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(std::string(call) + ": " + text);
}

}  // namespace

struct MpiEndpoint::Messages {
  struct Owner {
    MpiTask* task;
    int slot;
    int64_t chunk;
  };
  MPI_Comm comm = MPI_COMM_NULL;  // our own, apart from what a benchmark sends
  std::vector<MPI_Request> requests;
  std::vector<Owner> owners;
  std::vector<int> indices;
  std::vector<MPI_Status> statuses;

  MPI_Request* add(MpiTask& task, int slot, int64_t chunk) {
    owners.push_back({&task, slot, chunk});
    return &requests.emplace_back(MPI_REQUEST_NULL);
  }
  void remove_completed() {
    size_t kept = 0;
    for (size_t i = 0; i < requests.size(); ++i)
      if (requests[i] != MPI_REQUEST_NULL) {
        requests[kept] = requests[i];
        owners[kept++] = owners[i];
      }
    requests.resize(kept);
    owners.resize(kept);
  }
};

MpiEndpoint::MpiEndpoint() : messages_(std::make_unique<Messages>()) {}
MpiEndpoint::~MpiEndpoint() = default;

void MpiEndpoint::start() {
  // Over TCP, Open MPI asks the receiver before it sends more than 64 KiB, and the answer queues behind what travels
  // the other way: two ranks that exchange chunks would get little more than half of a slow link. So chunks go at once;
  // what the user has set stands.
  setenv("OMPI_MCA_btl_tcp_eager_limit", "1048576", 0);
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  check(provided >= MPI_THREAD_SERIALIZED, "this MPI library does not support MPI_THREAD_SERIALIZED");
  MPI_Comm& comm = messages_->comm;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm, &size_), "MPI_Comm_size");
  int* max_tag = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(comm, MPI_TAG_UB, &max_tag, &found), "MPI_Comm_get_attr");
  max_tag_ = found ? *max_tag : 32767;
}

void MpiEndpoint::stop() {
  check_mpi(MPI_Comm_free(&messages_->comm), "MPI_Comm_free");
  check_mpi(MPI_Finalize(), "MPI_Finalize");
}

void MpiEndpoint::abort(int exit_code) { MPI_Abort(MPI_COMM_WORLD, exit_code); }

void MpiEndpoint::post_send(MpiTask& task, int slot, int64_t chunk, const void* data, int64_t bytes, int to, int tag) {
  MPI_Request* request = messages_->add(task, slot, chunk);
  check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, messages_->comm, request), "MPI_Isend");
}

void MpiEndpoint::post_recv(MpiTask& task, int slot, int64_t chunk, void* data, int64_t bytes, int from, int tag) {
  MPI_Request* request = messages_->add(task, slot, chunk);
  check_mpi(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, messages_->comm, request), "MPI_Irecv");
}

bool MpiEndpoint::poll() {
  Messages& m = *messages_;
  if (m.requests.empty()) return false;
  m.indices.resize(m.requests.size());
  m.statuses.resize(m.requests.size());
  int count = 0, code = MPI_SUCCESS;
  // Open MPI looks at the requests first, then moves messages: what one call completes, only the next tells.
  for (int i = 0; i < 2 && count == 0; ++i) {
    code = MPI_Testsome(static_cast<int>(m.requests.size()), m.requests.data(), &count, m.indices.data(),
                        m.statuses.data());
    if (code != MPI_ERR_IN_STATUS) check_mpi(code, "MPI_Testsome");
  }
  if (count == MPI_UNDEFINED || count == 0) return false;
  for (int i = 0; i < count; ++i) {
    const MPI_Status& status = m.statuses[static_cast<size_t>(i)];
    if (code == MPI_ERR_IN_STATUS) check_mpi(status.MPI_ERROR, "MPI_Testsome");
    // A copy: completed() may post more, which moves the table.
    const Messages::Owner owner = m.owners[static_cast<size_t>(m.indices[static_cast<size_t>(i)])];
    int bytes = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    owner.task->completed(owner.slot, owner.chunk, bytes);
  }
  m.remove_completed();
  return true;
}

}  // namespace trivet
