#include "parallel/comm/nccl_comm.h"

#include <cstring>
#include <vector>

#include "kernels/base/cuda_device.h"
#include "parallel/comm/call_signature.h"
#include "parallel/comm/nccl_group.h"

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

  Memory* buffer_memory() override { return &rank_->memory; }
  std::shared_ptr<void> register_buffer(Tensor memory) override {
    if (size() == 1) return nullptr;
    return {group_->register_buffer(memory), [group = group_](void* handle) { group->deregister(handle); }};
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
