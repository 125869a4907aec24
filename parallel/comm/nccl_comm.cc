#include "parallel/comm/nccl_comm.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fmt/format.h>
#include <functional>
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

// One NCCL communicator. abort() and error() may come from any thread: abort() stops a call that waits, and takes the
// communicator away when no thread is inside NCCL.
class NcclGroup {
 public:
  NcclGroup(const std::string& name, int rank, int size, double timeout_s)
      : name_(name),
        label_("group '" + name + "', its rank " + std::to_string(rank) + " of " + std::to_string(size)),
        rank_(rank),
        size_(size),
        timeout_(timeout_s) {}
  ~NcclGroup() {
    if (comm_) ncclCommAbort(comm_);
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Comes before all else but abort(). Collective.
  void open(const ncclUniqueId& id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = name_.c_str();
    std::lock_guard lock(mutex_);
    if (failed_) fail_with("ncclCommInitRankConfig", "the group was aborted: " + why_);
    try {
      finish(ncclCommInitRankConfig(&comm_, size_, id, rank_, &config), "ncclCommInitRankConfig");
    } catch (...) {
      if (comm_) ncclCommAbort(comm_);
      comm_ = nullptr;
      throw;
    }
  }

  // No call follows; end() waits until the peers have come here too.
  void close() noexcept {
    std::lock_guard lock(mutex_);
    if (comm_) finalized_ = ncclCommFinalize(comm_);
  }
  void end() noexcept {
    std::lock_guard lock(mutex_);
    if (!comm_) return;
    try {
      finish(finalized_, "ncclCommFinalize");
      ncclCommDestroy(comm_);
    } catch (...) {
      ncclCommAbort(comm_);
    }
    comm_ = nullptr;
  }

  // Makes one call f(ncclComm_t) and waits until NCCL has taken it: not until it has run.
  template <class F>
  void call(const char* what, const F& f) {
    std::lock_guard lock(mutex_);
    if (failed_) fail_with(what, "the group was aborted: " + why_);
    ncclResult_t earlier = ncclSuccess;
    ncclCommGetAsyncError(comm_, &earlier);
    if (is_error(earlier)) fail_with(what, text_of(earlier) + ", of an earlier call");
    finish(f(comm_), what);
    ++calls_;
    last_ = what;
  }

  // What NCCL has found wrong behind the calls; empty: nothing, or a thread is inside NCCL and hears of it there.
  std::string error() noexcept {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    ncclResult_t state = ncclSuccess;
    if (!lock || !comm_) return {};
    if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state); asked != ncclSuccess) state = asked;
    if (!is_error(state)) return {};
    return label_ + ": " + text_of(state) + ", noticed after " + std::to_string(calls_) + " calls" +
           (calls_ > 0 ? std::string(", of which the last is ") + last_ : std::string());
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

  static bool is_error(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

 private:
  [[noreturn]] void fail_with(const char* what, const std::string& why) const {
    fail(label_ + ": " + what + ": " + why);
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
        fail_with(what, fmt::format("not done after {:g} s: another rank of the group has not come to it", timeout_));
      std::this_thread::yield();
      if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result); asked != ncclSuccess) result = asked;
    }
    if (result != ncclSuccess) fail_with(what, text_of(result));
  }

  const std::string name_, label_;
  const int rank_, size_;
  const double timeout_;
  std::mutex mutex_;  // held while a thread is inside NCCL
  ncclComm_t comm_ = nullptr;
  ncclResult_t finalized_ = ncclInvalidUsage;  // what close() was told
  int64_t calls_ = 0;
  const char* last_ = "";  // of them
  bool failed_ = false;
  std::string why_;
  std::atomic<bool> aborting_ = false;
};

// All groups of one rank, which end together, and no earlier: ncclCommFinalize waits for the peers, so ranks that ended
// one group after another, each in an order of its own, would wait for each other in a circle.
//
// When a rank fails, or a connection, streams wait inside NCCL, and hosts for these streams: no news from the host's
// world reaches them, and NCCL tells an error of the kernels that wait to whoever asks for it. So a thread of each rank
// looks for both, until its groups have ended. On either it breaks off what NCCL does on this rank, and poisons the
// device, so that the host, wherever it waits, goes on with the error and not with what was left half done.
class NcclRank {
 public:
  NcclRank(Communicator& host, Device& device, double timeout_s)
      : host(host), device(device), timeout_s_(timeout_s), exceptions_(std::uncaught_exceptions()), watcher_([this] {
          watch();
        }) {}
  ~NcclRank() {
    if (std::uncaught_exceptions() > exceptions_) abort("an exception ends the rank");
    for (const auto& group : groups_) group->close();
    for (const auto& group : groups_) group->end();
    {
      std::lock_guard lock(watch_mutex_);
      over_ = true;
    }
    ends_.notify_all();
    watcher_.join();
  }
  Communicator& host;
  Device& device;

  std::shared_ptr<NcclGroup> add(const std::string& name, int rank, int size) {
    auto group = std::make_shared<NcclGroup>(name, rank, size, timeout_s_);
    std::lock_guard lock(mutex_);
    if (!why_.empty()) group->abort(why_);
    return groups_.emplace_back(std::move(group));
  }
  void set_witness(std::function<std::string()> witness) {
    std::lock_guard lock(mutex_);
    witness_ = std::move(witness);
  }
  // Aborts, and throws Error that says why, where something has gone wrong. Any thread.
  void look() {
    std::lock_guard looks(look_mutex_);
    std::string why;
    if (const Failure failure = host.failure(); failure.rank >= 0) {
      why = "rank " + std::to_string(failure.rank) + " has failed: " + failure.why;
    } else {
      why = error();
      if (why.empty()) return;
      host.abort(why);
    }
    abort(why);
    throw Error(why_);
  }
  void abort(const std::string& why) noexcept {
    std::lock_guard lock(mutex_);
    if (!why_.empty()) return;
    why_ = why;
    if (witness_) witness_();
    device.poison(why);
    for (const auto& group : groups_) group->abort(why);
  }

 private:
  void watch() {
    std::unique_lock lock(watch_mutex_);
    while (!ends_.wait_for(lock, kLook, [&] { return over_; })) try {
        look();
      } catch (const Error&) {
        return;  // who waits or calls hears of it
      }
  }
  std::string error() {
    std::lock_guard lock(mutex_);
    for (const auto& group : groups_) {
      const std::string error = group->error();
      if (error.empty()) continue;
      const std::string where = witness_ ? witness_() : "";
      return where.empty() ? error : error + "; this rank is in " + where;
    }
    return {};
  }

  static constexpr std::chrono::milliseconds kLook{100};
  const double timeout_s_;
  const int exceptions_;
  std::mutex mutex_;  // guards the next three
  std::vector<std::shared_ptr<NcclGroup>> groups_;
  std::function<std::string()> witness_;
  std::string why_;  // not empty: it has aborted, and this stays
  std::mutex look_mutex_;

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
      return NcclGroup::is_error(sent) ? sent : NcclGroup::is_error(received) ? received : ended;
    });
  }
  void barrier() override { host_.barrier(); }

  std::unique_ptr<Communicator> split(int color, int key, std::string name, Category category) override {
    auto host = host_.split(color, key, name, category);
    return std::make_unique<NcclCommunicator>(std::move(host), rank_, name, category);
  }

  void abort(const std::string& why) noexcept override {
    host_.abort(why);  // first: to NCCL of another rank this one is then a peer that is gone, and not the cause
    rank_->abort(why);
  }
  Failure failure() const override { return host_.failure(); }
  void set_witness(std::function<std::string()> witness) override { rank_->set_witness(std::move(witness)); }

 private:
  template <class F>
  void call(const char* name, const Tensor& full, Stream& stream, const F& f) {
    enqueue(stream, {name, category_, full.bytes()}, [&](cudaStream_t) {
      try {
        group_->call(name, f);
      } catch (const Error&) {
        rank_->look();  // it may be an earlier call's
        throw;
      }
    });
  }
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
    group_ = rank_->add(name, rank(), size());
    group_->open(id);
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
