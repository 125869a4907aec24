#include "parallel/comm/nccl_comm.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <nccl.h>
#include <thread>
#include <vector>

#include "kernels/base/cuda_device.h"
#include "parallel/comm/call_signature.h"

namespace trivet {
namespace {

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    case DType::u8: return ncclUint8;
  }
  return ncclUint8;
}

ncclRedOp_t nccl_op(Reduce op) { return op == Reduce::sum ? ncclSum : op == Reduce::max ? ncclMax : ncclAvg; }

// Collectives are connected when a group is made, as they were before NCCL 2.22: in the call that first needs them, the
// host would wait for the other ranks, which may be waiting for this one in the first call of another group. And NCCL
// takes its memory before the engine takes the rest. NCCL reads it when it starts; set before main(), while there is no
// other thread that may read the environment.
[[maybe_unused]] const int kConnectsEarly = setenv("NCCL_RUNTIME_CONNECT", "0", 0);

// One NCCL communicator. abort() may come from any thread: it stops a call that waits, and takes the communicator away
// when no thread is inside NCCL.
class NcclGroup {
 public:
  NcclGroup(std::string name, int rank, double timeout_s) : name_(std::move(name)), rank_(rank), timeout_(timeout_s) {}
  ~NcclGroup() {
    std::lock_guard lock(mutex_);
    if (!comm_) return;
    try {
      finish(finalized_, "ncclCommFinalize");
      ncclCommDestroy(comm_);
    } catch (...) {
      ncclCommAbort(comm_);
    }
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Comes before all else but abort(). Collective.
  void open(int size, const ncclUniqueId& id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = name_.c_str();
    std::lock_guard lock(mutex_);
    if (failed_) fail_with("ncclCommInitRankConfig", "the group was aborted: " + why_);
    try {
      finish(ncclCommInitRankConfig(&comm_, size, id, rank_, &config), "ncclCommInitRankConfig");
    } catch (...) {
      if (comm_) ncclCommAbort(comm_);
      comm_ = nullptr;
      throw;
    }
  }

  // No call follows; the destructor waits until the peers have come here too.
  void close() noexcept {
    std::lock_guard lock(mutex_);
    if (comm_) finalized_ = ncclCommFinalize(comm_);
  }

  // Makes one call f(ncclComm_t) and waits until NCCL has taken it: not until it has run.
  template <class F>
  void call(const char* what, const F& f) {
    std::lock_guard lock(mutex_);
    if (failed_) fail_with(what, "the group was aborted: " + why_);
    ncclResult_t earlier = ncclSuccess;
    ncclCommGetAsyncError(comm_, &earlier);
    if (earlier != ncclSuccess && earlier != ncclInProgress) fail_with(what, text_of(earlier) + ", of an earlier call");
    finish(f(comm_), what);
  }

  void abort(const std::string& why) noexcept {
    aborting_ = true;  // a call that waits gives up, and with it the mutex
    std::lock_guard lock(mutex_);
    if (failed_) return;
    failed_ = true;
    why_ = why;
    if (comm_) ncclCommAbort(comm_);  // also ends the kernels that wait on this GPU
    comm_ = nullptr;
  }

 private:
  [[noreturn]] void fail_with(const char* what, const std::string& why) const {
    fail("group '" + name_ + "', rank " + std::to_string(rank_) + ": " + what + ": " + why);
  }
  std::string text_of(ncclResult_t result) const {
    return std::string(ncclGetErrorString(result)) + " (" + ncclGetLastError(comm_) + ")";
  }

  // REQUIRES: mutex_.
  void finish(ncclResult_t result, const char* what) {
    const auto start = std::chrono::steady_clock::now();
    while (result == ncclInProgress) {
      if (aborting_) fail_with(what, "aborted");
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
      if (spent.count() > timeout_)
        fail_with(what, "not done after " + std::to_string(static_cast<int>(timeout_)) + " s");
      std::this_thread::yield();
      if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result); asked != ncclSuccess) result = asked;
    }
    if (result != ncclSuccess) fail_with(what, text_of(result));
  }

  const std::string name_;
  const int rank_;
  const double timeout_;
  std::mutex mutex_;  // held while a thread is inside NCCL
  ncclComm_t comm_ = nullptr;
  ncclResult_t finalized_ = ncclInvalidUsage;  // what close() was told
  bool failed_ = false;
  std::string why_;
  std::atomic<bool> aborting_ = false;
};

// All groups of one rank, which end together, and no earlier: ncclCommFinalize waits for the peers, so ranks that ended
// one group after another, each in an order of its own, would wait for each other in a circle.
//
// When a rank fails, the streams of the others wait inside NCCL, and their hosts for these streams, which no news from
// the host's world reaches. So a thread of each rank looks whether there is such news.
struct NcclRank {
  NcclRank(Communicator& host, Device& device, double timeout_s)
      : host(host), device(device), timeout_s(timeout_s), watcher_([this] { watch(); }) {}
  ~NcclRank() {
    {
      std::lock_guard lock(watch_mutex_);
      over_ = true;
    }
    ends_.notify_all();
    watcher_.join();
    for (const auto& group : groups) group->close();
  }
  Communicator& host;
  Device& device;
  const double timeout_s;
  std::mutex mutex;
  std::vector<std::shared_ptr<NcclGroup>> groups;

  std::shared_ptr<NcclGroup> add(const std::string& name, int rank) {
    std::lock_guard lock(mutex);
    return groups.emplace_back(std::make_shared<NcclGroup>(name, rank, timeout_s));
  }
  void abort(const std::string& why) noexcept {
    std::lock_guard lock(mutex);
    for (const auto& group : groups) group->abort(why);
  }

 private:
  void watch() {
    std::unique_lock lock(watch_mutex_);
    while (!ends_.wait_for(lock, std::chrono::milliseconds(100), [&] { return over_; })) {
      const int failed = host.failed_rank();
      if (failed < 0) continue;
      return abort("rank " + std::to_string(failed) + " has failed");
    }
  }

  std::mutex watch_mutex_;
  std::condition_variable ends_;
  bool over_ = false;
  std::thread watcher_;  // last
};

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(Communicator& world, std::shared_ptr<NcclRank> rank)
      : host_(world), rank_(std::move(rank)), category_(Category::comm_data) {
    connect("world");
  }
  NcclCommunicator(std::unique_ptr<Communicator> host, std::shared_ptr<NcclRank> rank, const std::string& name,
                   Category category)
      : owned_(std::move(host)), host_(*owned_), rank_(std::move(rank)), category_(category) {
    connect(name);
  }

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }

  void all_reduce(Tensor full, Reduce op, Stream& stream) override {
    if (size() == 1) return;
    call("all_reduce", full, stream, [&](ncclComm_t comm) {
      return ncclAllReduce(full.data, full.data, count(full), nccl_type(full.dtype), nccl_op(op), comm, raw(stream));
    });
  }
  void reduce_scatter(Tensor full, Tensor shard, Reduce op, Stream& stream) override {
    check_shards("reduce_scatter", full, shard, rank(), size());
    if (size() == 1) return copy_alone(full, shard, stream);
    call("reduce_scatter", full, stream, [&](ncclComm_t comm) {
      return ncclReduceScatter(full.data, shard.data, count(shard), nccl_type(full.dtype), nccl_op(op), comm,
                               raw(stream));
    });
  }
  void all_gather(Tensor shard, Tensor full, Stream& stream) override {
    check_shards("all_gather", full, shard, rank(), size());
    if (size() == 1) return copy_alone(shard, full, stream);
    call("all_gather", full, stream, [&](ncclComm_t comm) {
      return ncclAllGather(shard.data, full.data, count(shard), nccl_type(full.dtype), comm, raw(stream));
    });
  }
  void broadcast(Tensor data, int root, Stream& stream) override {
    check(root >= 0 && root < size(), "broadcast from a rank outside the group");
    if (size() == 1) return;
    call("broadcast", data, stream, [&](ncclComm_t comm) {
      return ncclBroadcast(data.data, data.data, count(data), nccl_type(data.dtype), root, comm, raw(stream));
    });
  }
  void send(Tensor data, int to, Stream& stream) override {
    check(to >= 0 && to < size() && to != rank(), "send to a rank outside the group, or to itself");
    call("send", data, stream, [&](ncclComm_t comm) {
      return ncclSend(data.data, count(data), nccl_type(data.dtype), to, comm, raw(stream));
    });
  }
  void recv(Tensor data, int from, Stream& stream) override {
    check(from >= 0 && from < size() && from != rank(), "recv from a rank outside the group, or from itself");
    call("recv", data, stream, [&](ncclComm_t comm) {
      return ncclRecv(data.data, count(data), nccl_type(data.dtype), from, comm, raw(stream));
    });
  }
  void exchange(Tensor out, int to, Tensor in, int from, Stream& stream) override {
    for (const int peer : {to, from})
      check(peer >= 0 && peer < size() && peer != rank(), "exchange with a rank outside the group, or with itself");
    call("exchange", out, stream, [&](ncclComm_t comm) {
      const ncclResult_t started = ncclGroupStart();
      if (started != ncclSuccess) return started;
      const ncclResult_t sent = ncclSend(out.data, count(out), nccl_type(out.dtype), to, comm, raw(stream));
      const ncclResult_t received = ncclRecv(in.data, count(in), nccl_type(in.dtype), from, comm, raw(stream));
      const ncclResult_t ended = ncclGroupEnd();
      return is_error(sent) ? sent : is_error(received) ? received : ended;
    });
  }
  void barrier() override { host_.barrier(); }

  std::unique_ptr<Communicator> split(int color, int key, std::string name, Category category) override {
    auto host = host_.split(color, key, name, category);
    return std::make_unique<NcclCommunicator>(std::move(host), rank_, name, category);
  }

  void abort(const std::string& why) noexcept override {
    rank_->abort(why);
    host_.abort(why);
  }

 private:
  template <class F>
  void call(const char* name, const Tensor& full, Stream& stream, const F& f) {
    enqueue(stream, {name, category_, full.bytes()}, [&](cudaStream_t) { group_->call(name, f); });
  }
  static bool is_error(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }
  static size_t count(const Tensor& t) { return static_cast<size_t>(t.numel()); }

  // Rank 0 draws the id and the host's group carries it.
  void connect(const std::string& name) {
    if (size() == 1) return;
    ncclUniqueId id;
    std::memset(&id, 0, sizeof id);
    if (rank() == 0)
      if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess)
        fail("group '" + name + "': ncclGetUniqueId: " + ncclGetErrorString(result));
    const auto host_device = create_cpu_device();
    const auto stream = host_device->create_compute_stream();
    host_.broadcast({id.internal, DType::u8, {sizeof id.internal}}, 0, *stream);
    group_ = rank_->add(name, rank());
    group_->open(size(), id);
    if (size() == 2 && category_ == Category::comm_pipeline) connect_pair();
  }

  // NCCL connects two ranks in the first transfer between them, and the host waits until both have called. The ends of
  // a pipeline's channels are called at different times, and wait for other channels in between: they are connected
  // now.
  void connect_pair() {
    const auto stream = rank_->device.create_side_stream(StreamPriority::normal);
    void* const memory = rank_->device.allocate(2);
    const int peer = 1 - rank();
    try {
      const Tensor out{memory, DType::u8, {1}}, in{static_cast<std::byte*>(memory) + 1, DType::u8, {1}};
      exchange(out, peer, in, peer, *stream);
      stream->synchronize();
    } catch (...) {
      rank_->device.deallocate(memory, 2);
      throw;
    }
    rank_->device.deallocate(memory, 2);
  }

  void copy_alone(const Tensor& from, const Tensor& to, Stream& stream) {
    if (from.data == to.data || from.bytes() == 0) return;
    check_cuda(
        cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(from.bytes()), cudaMemcpyDeviceToDevice, raw(stream)),
        "cudaMemcpyAsync");
  }

  std::unique_ptr<Communicator> owned_;
  Communicator& host_;
  const std::shared_ptr<NcclRank> rank_;
  const Category category_;
  std::shared_ptr<NcclGroup> group_;  // null: one rank
};

}  // namespace

bool built_with_nccl() { return true; }

std::unique_ptr<Communicator> create_nccl_communicator(Communicator& world, Device& device, double timeout_s) {
  check(device.kind() == DeviceKind::cuda, "create_nccl_communicator needs a CUDA device");
  auto rank = std::make_shared<NcclRank>(world, device, timeout_s);
  return std::make_unique<NcclCommunicator>(world, std::move(rank));
}

}  // namespace trivet
