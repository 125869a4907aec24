#include "parallel/comm/mpi_endpoint.h"

#include <cstdlib>
#include <functional>
#include <string>

#include "base/host.h"
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

void MpiEndpoint::start() {
  // Over TCP, Open MPI asks the receiver before it sends more than 64 KiB, and the reply queues behind data travelling
  // the other way: two ranks exchanging chunks would get little more than half the bandwidth of a slow link. So chunks
  // are sent eagerly, unless the user has set the limit.
  setenv("OMPI_MCA_btl_tcp_eager_limit", "1048576", 0);
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  check(provided >= MPI_THREAD_SERIALIZED, "this MPI library does not support MPI_THREAD_SERIALIZED");
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  int* max_tag = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(comm_, MPI_TAG_UB, &max_tag, &found), "MPI_Comm_get_attr");
  max_tag_ = found ? *max_tag : 32767;
  find_neighbours();
}

void MpiEndpoint::find_neighbours() {
  const int64_t hash = clock_number();
  int64_t largest[] = {hash, -hash};
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, largest, 2, MPI_INT64_T, MPI_MAX, comm_), "MPI_Allreduce");
  one_clock_ = largest[0] == -largest[1];

  MPI_Comm host = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host), "MPI_Comm_split_type");
  int neighbours = 0;
  check_mpi(MPI_Comm_size(host, &neighbours), "MPI_Comm_size");
  std::vector<int> ranks(static_cast<size_t>(neighbours));
  check_mpi(MPI_Allgather(&rank_, 1, MPI_INT, ranks.data(), 1, MPI_INT, host), "MPI_Allgather");
  check_mpi(MPI_Comm_free(&host), "MPI_Comm_free");
  shares_memory_.assign(static_cast<size_t>(size_), 0);
  for (const int rank : ranks) shares_memory_[static_cast<size_t>(rank)] = 1;
}

void MpiEndpoint::stop() {
  check_mpi(MPI_Comm_free(&comm_), "MPI_Comm_free");
  check_mpi(MPI_Finalize(), "MPI_Finalize");
}

void MpiEndpoint::abort(int exit_code) { MPI_Abort(MPI_COMM_WORLD, exit_code); }

MPI_Request* MpiEndpoint::add(const Owner& owner) {
  owners_.push_back(owner);
  return &requests_.emplace_back(MPI_REQUEST_NULL);
}

void MpiEndpoint::post_send(MpiTask& task, int slot, int64_t chunk, const void* data, int64_t bytes, int to, int tag) {
  MPI_Request* request = add({&task, slot, chunk});
  check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, comm_, request), "MPI_Isend");
}

void MpiEndpoint::post_recv(MpiTask& task, int slot, int64_t chunk, void* data, int64_t bytes, int from, int tag) {
  MPI_Request* request = add({&task, slot, chunk});
  check_mpi(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, comm_, request), "MPI_Irecv");
}

bool MpiEndpoint::poll() {
  if (requests_.empty()) return false;
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0, code = MPI_SUCCESS;
  // Open MPI tests the requests before it moves messages, so only the next call reports what this call completes.
  for (int i = 0; i < 2 && count == 0; ++i) {
    code =
        MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, indices_.data(), statuses_.data());
    if (code != MPI_ERR_IN_STATUS) check_mpi(code, "MPI_Testsome");
  }
  if (count == MPI_UNDEFINED || count == 0) return false;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    if (code == MPI_ERR_IN_STATUS) check_mpi(statuses_[i].MPI_ERROR, "MPI_Testsome");
    const Owner owner = owners_[static_cast<size_t>(indices_[i])];  // a copy: completed() may add to owners_
    int bytes = 0;
    check_mpi(MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes), "MPI_Get_count");
    owner.task->completed(owner.slot, owner.chunk, bytes);
  }
  size_t left = 0;
  for (size_t i = 0; i < requests_.size(); ++i)
    if (requests_[i] != MPI_REQUEST_NULL) {
      requests_[left] = requests_[i];
      owners_[left++] = owners_[i];
    }
  requests_.resize(left);
  owners_.resize(left);
  return true;
}

}  // namespace trivet
