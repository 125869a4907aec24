// The functions of NCCL that Trivet calls (parallel/comm/nccl_comm.cc), for ranks that are threads of one process, on
// emulated GPUs. Types and names are those of NVIDIA's own <nccl.h>. An operation is work on its stream, where it meets
// the other ranks' operations (nccl_clique.h). The emulation is designed to find the caller's mistakes, so it is as
// strict as NCCL can be:
//
//   * A send waits for its receiver, on the stream. The calls of one group make progress together.
//   * The first transfer between two ranks, and the first collective of each kind (not with NCCL_RUNTIME_CONNECT=0),
//     connects the ranks: a nonblocking communicator is ncclInProgress until all ranks have called.
//   * A communicator's operations run one after another in the order of the calls, even on several streams.
//   * ncclCommFinalize completes when all ranks have called it.
//   * ncclCommAbort waits for the whole GPU: also for other communicators' operations, except for those that are
//     aborted in the same group. If these do not end within ten seconds, the process ends.
//   * Each rank must have a GPU of its own.
//   * Either all ranks of a collective use registered buffers, at the same offset, or none does.
//
// Process ranks are refused: their GPUs share one UUID, so the engine does not try NCCL (memory.cc). If the ranks'
// calls differ, and NCCL would hang or move wrong data, all ranks get an asynchronous error. No operation on a stream
// ends with an error: it waits until its rank aborts. So does a rank whose peer has aborted. With
// TRIVET_EMULATED_NCCL_FAULT=NAME:RANK:CALL[:silent], call number CALL (from 0) of that rank in communicators of that
// name never happens, and the rank gets ncclRemoteError (silent: no error); its peers are not notified. Operations
// cannot be captured into graphs. Calls and values that are not emulated are refused.
#include <algorithm>
#include <chrono>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <thread>
#include <utility>

#include "tests/emulation/grid.h"
#include "tests/emulation/nccl_buffers.h"
#include "tests/emulation/nccl_clique.h"
#include "tests/emulation/stream.h"

using trivet::emulation::broken;
using trivet::emulation::bytes_of;
using trivet::emulation::NcclBuffers;
using trivet::emulation::NcclCall;
using trivet::emulation::NcclClique;
using trivet::emulation::NcclOperation;

struct ncclComm {
  std::shared_ptr<NcclClique> clique;
  int rank = 0, device = 0, ctas = 0;
  bool blocking = true, finalizing = false;
  uint64_t collectives = 0;                            // number of calls
  std::map<std::pair<bool, int>, uint64_t> transfers;  // {sends, peer}: number of calls
  std::vector<NcclOperation> connecting;               // operations that wait for their connections
  NcclBuffers buffers;
};

namespace {

// ---- ids

struct Registry {
  std::mutex mutex;
  uint64_t drawn = 0;
  std::map<std::string, std::shared_ptr<NcclClique>> cliques;  // by id; null until the first rank joins
};
Registry& registry() {
  static Registry registry;
  return registry;
}
std::string text_of(const ncclUniqueId& id) { return {id.internal, sizeof id.internal}; }

// Joins the clique with this id, which becomes invalid when the clique's last rank has joined.
std::shared_ptr<NcclClique> join(const ncclUniqueId& id, const char* name, int size, int rank, int device) {
  Registry& ids = registry();
  std::lock_guard lock(ids.mutex);
  const auto found = ids.cliques.find(text_of(id));
  if (found == ids.cliques.end()) return nullptr;
  if (!found->second) found->second = std::make_shared<NcclClique>(size, name ? name : "");
  const std::shared_ptr<NcclClique> clique = found->second;
  clique->join(rank, size, device);
  if (clique->complete()) ids.cliques.erase(found);
  return clique;
}

bool is_plain(const ncclConfig_t& config) {
  ncclConfig_t plain = NCCL_CONFIG_INITIALIZER;
  plain.blocking = config.blocking;
  plain.commName = config.commName;
  if (config.maxCTAs >= 1 && config.maxCTAs <= 64) plain.maxCTAs = config.maxCTAs;
  const auto fields = [](const ncclConfig_t& c) {
    return std::tuple(c.size, c.magic, c.version, c.cgaClusterSize, c.minCTAs, c.maxCTAs, c.netName, c.splitShare,
                      c.trafficClass, c.collnetEnable, c.CTAPolicy, c.shrinkShare, c.nvlsCTAs, c.nChannelsPerNetPeer,
                      c.nvlinkCentricSched);
  };
  return fields(config) == fields(plain) &&
         (config.blocking == 0 || config.blocking == 1 || config.blocking == NCCL_CONFIG_UNDEF_INT);
}

// ---- existing communicators

struct Alive {
  std::shared_ptr<NcclClique> clique;
  int rank, device;
};
std::mutex alive_mutex;
std::map<const ncclComm*, Alive> alive;

void end(ncclComm* comm) {
  {
    std::lock_guard lock(alive_mutex);
    alive.erase(comm);
  }
  delete comm;
}

// Destroys communicators, all of which are already aborted.
void end_aborted(const std::vector<ncclComm*>& comms) {
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (ncclComm* comm : comms) {
    const int device = comm->device;
    end(comm);
    const auto gpu_is_through = [&] {
      std::lock_guard lock(alive_mutex);
      return std::all_of(alive.begin(), alive.end(), [&](const auto& other) {
        return other.second.device != device || other.second.clique->idle(other.second.rank);
      });
    };
    while (!gpu_is_through()) {
      if (std::chrono::steady_clock::now() > late)
        broken("ncclCommAbort waits for the GPU, where another communicator's operations wait for their peers");
      std::this_thread::yield();
    }
  }
}

// ---- state of a communicator

ncclResult_t state_of(ncclComm& comm) {
  NcclClique& clique = *comm.clique;
  if (const ncclResult_t error = clique.error(comm.rank); error != ncclSuccess) return error;
  std::erase_if(comm.connecting, [&](const NcclOperation& o) { return clique.connected(comm.rank, o); });
  const bool waits = !clique.complete() || !comm.connecting.empty() ||
                     (comm.finalizing && !(clique.all_finalized() && clique.idle(comm.rank)));
  return waits ? ncclInProgress : ncclSuccess;
}

// Result of a call: the present state, or, if blocking, the state on completion.
ncclResult_t settled(ncclComm& comm, bool at_once) {
  if (!comm.blocking) return at_once ? state_of(comm) : ncclInProgress;
  ncclResult_t state = state_of(comm);
  for (; state == ncclInProgress; state = state_of(comm)) std::this_thread::yield();
  return state;
}

// The offset of a collective's whole tensor in a registered buffer, if its other tensor is registered too.
std::optional<size_t> registered_at(const ncclComm& comm, const NcclOperation& o) {
  if (o.is_transfer()) return {};
  const size_t part = o.bytes(), whole = part * static_cast<size_t>(comm.clique->size());
  const bool scatters = o.call == NcclCall::reduce_scatter, gathers = o.call == NcclCall::all_gather;
  const auto in = comm.buffers.offset_of(o.in, scatters ? whole : part);
  const auto out = comm.buffers.offset_of(o.out, gathers ? whole : part);
  return in && out ? scatters ? in : out : std::nullopt;
}

// Queues one call, or a group's calls on one communicator, on its stream.
ncclResult_t submit(ncclComm& comm, std::vector<NcclOperation> operations, cudaStream_t stream) {
  bool at_once = true;
  for (NcclOperation& o : operations) {
    o.registered_at = registered_at(comm, o);
    o.number = o.is_transfer() ? comm.transfers[{o.call == NcclCall::send, o.peer}]++ : comm.collectives++;
    if (comm.clique->connect(comm.rank, o)) continue;
    comm.connecting.push_back(o);
    at_once = false;
  }
  const auto run = [clique = comm.clique, rank = comm.rank, ctas = comm.ctas, ticket = comm.clique->ticket(comm.rank),
                    operations = std::move(operations)] { clique->run(rank, ticket, operations, ctas); };
  if (trivet::emulation::add(stream, run) != cudaSuccess) return ncclUnhandledCudaError;
  return settled(comm, at_once);
}

// ---- groups, per thread

struct Queued {
  ncclComm* comm;
  NcclOperation operation;
  cudaStream_t stream;
};
thread_local const char* last_error = "";  // for errors without a communicator
thread_local int group_depth = 0;
thread_local std::vector<Queued> group;
thread_local std::vector<ncclComm*> aborted_in_group;

ncclResult_t call(ncclComm_t comm, const NcclOperation& o, cudaStream_t stream) {
  if (!comm) return ncclInvalidArgument;
  const bool reduces = o.call == NcclCall::all_reduce || o.call == NcclCall::reduce_scatter;
  if (bytes_of(o.type) == 0 ||
      (o.count > 0 && ((o.call != NcclCall::receive && !o.in) || (o.call != NcclCall::send && !o.out))))
    return ncclInvalidArgument;
  if (reduces && ((o.type != ncclFloat32 && o.type != ncclBfloat16 && o.type != ncclInt64) ||
                  (o.reduce != ncclSum && o.reduce != ncclMax && (o.reduce != ncclAvg || o.type == ncclInt64))))
    return ncclInvalidArgument;
  const bool has_peer = o.is_transfer() || o.call == NcclCall::broadcast;
  if (has_peer && (o.peer < 0 || o.peer >= comm->clique->size() || (o.is_transfer() && o.peer == comm->rank)))
    return ncclInvalidArgument;
  if (const ncclResult_t state = state_of(*comm); state != ncclSuccess)
    return state == ncclInProgress ? ncclInvalidUsage : state;
  if (comm->finalizing) return ncclInvalidUsage;
  cudaStreamCaptureStatus captures = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &captures) != cudaSuccess) return ncclUnhandledCudaError;
  if (captures != cudaStreamCaptureStatusNone) return ncclInvalidUsage;  // not emulated
  if (o.count == 0 && !o.is_transfer()) return ncclSuccess;              // the other ranks need not know of the call
  if (group_depth == 0) return submit(*comm, {o}, stream);
  group.push_back({comm, o, stream});
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (!id) return ncclInvalidArgument;
  *id = {};
  Registry& ids = registry();
  std::lock_guard lock(ids.mutex);
  ("trivet-emulated-" + std::to_string(ids.drawn++)).copy(id->internal, sizeof id->internal - 1);
  ids.cliques[text_of(*id)] = nullptr;
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  int device = 0;
  if (!comm || !config || !is_plain(*config) || rank < 0 || rank >= size) return ncclInvalidArgument;
  if (cudaGetDevice(&device) != cudaSuccess) return ncclUnhandledCudaError;
  auto clique = join(id, config->commName, size, rank, device);
  if (!clique) {
    last_error = "the emulated NCCL connects threads of one process; expected comm.backend: staged, or --ranks";
    return ncclInvalidArgument;
  }
  *comm = new ncclComm;
  (*comm)->clique = std::move(clique);
  (*comm)->rank = rank;
  (*comm)->device = device;
  constexpr int kCtas = 32;  // NCCL's default is up to this many, depending on the links that it finds
  (*comm)->ctas = config->maxCTAs == NCCL_CONFIG_UNDEF_INT ? kCtas : config->maxCTAs;
  trivet::emulation::driver().greatest_ctas = std::max(trivet::emulation::driver().greatest_ctas.load(), (*comm)->ctas);
  {
    std::lock_guard lock(alive_mutex);
    alive[*comm] = {(*comm)->clique, rank, device};
  }
  (*comm)->blocking = config->blocking != 0;
  return settled(**comm, false);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (!comm || !state) return ncclInvalidArgument;
  *state = state_of(*comm);
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (!comm || comm->finalizing) return ncclInvalidArgument;
  if (const ncclResult_t state = state_of(*comm); state != ncclSuccess)
    return state == ncclInProgress ? ncclInvalidUsage : state;
  comm->finalizing = true;
  comm->clique->finalize(comm->rank);
  return settled(*comm, false);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm) return ncclInvalidArgument;
  if (!comm->finalizing || state_of(*comm) == ncclInProgress) return ncclInvalidUsage;  // NCCL would wait
  end(comm);
  return ncclSuccess;
}

#ifdef NCCL_REVOKE_DEFAULT
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  if (!comm || flags != NCCL_REVOKE_DEFAULT || comm->finalizing) return ncclInvalidArgument;
  comm->clique->abort(comm->rank);
  return ncclSuccess;
}
#endif

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclInvalidArgument;
  comm->clique->abort(comm->rank);
  if (group_depth > 0) aborted_in_group.push_back(comm);
  else end_aborted({comm});
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, size_t bytes, void** handle) {
  if (!comm || !data || bytes == 0 || !handle) return ncclInvalidArgument;
  *handle = comm->buffers.add(data, bytes);
  return *handle ? ncclSuccess : ncclInvalidArgument;
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  return comm && comm->buffers.remove(handle) ? ncclSuccess : ncclInvalidArgument;
}

const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* kTexts[] = {"no error",       "unhandled cuda error", "unhandled system error",
                                    "internal error", "invalid argument",     "invalid usage",
                                    "remote error",   "in progress"};
  return result >= 0 && result < ncclNumResults ? kTexts[result] : "unknown";
}
const char* ncclGetLastError(ncclComm_t comm) {
  return comm && comm->clique->error(comm->rank) != ncclSuccess ? comm->clique->error_text() : last_error;
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return ncclInvalidUsage;
  if (--group_depth > 0) return ncclSuccess;
  end_aborted(std::exchange(aborted_in_group, {}));
  std::vector<Queued> queued;
  queued.swap(group);
  ncclResult_t result = ncclSuccess;
  while (!queued.empty()) {
    const auto [comm, operation, stream] = queued.front();
    std::vector<NcclOperation> operations;
    for (const Queued& q : queued)
      if (q.comm == comm) {
        if (q.stream != stream) return ncclInvalidUsage;  // not emulated
        operations.push_back(q.operation);
      }
    std::erase_if(queued, [comm = comm](const Queued& q) { return q.comm == comm; });
    const ncclResult_t one = submit(*comm, std::move(operations), stream);
    if (result == ncclSuccess || (result == ncclInProgress && one != ncclSuccess)) result = one;
  }
  return result;
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {NcclCall::all_reduce, in, out, count, type, op}, stream);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {NcclCall::reduce_scatter, in, out, count, type, op}, stream);
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return call(comm, {NcclCall::all_gather, in, out, count, type}, stream);
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return call(comm, {NcclCall::broadcast, in, out, count, type, ncclSum, root}, stream);
}
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(comm, {NcclCall::send, in, nullptr, count, type, ncclSum, peer}, stream);
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {NcclCall::receive, nullptr, out, count, type, ncclSum, peer}, stream);
}

}  // extern "C"
