#include "parallel/comm/nccl_comm.h"

#include <array>
#include <cstring>

#include "kernels/base/cuda_device.h"
#include "parallel/comm/host_world.h"
#include "parallel/comm/nccl_group.h"

namespace trivet {
namespace {

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    case DType::u8:
    case DType::e4m3:
    case DType::e5m2: return ncclUint8;  // moved, never reduced
  }
  return ncclUint8;
}

ncclRedOp_t nccl_op(Reduce op) { return op == Reduce::sum ? ncclSum : op == Reduce::max ? ncclMax : ncclAvg; }

size_t count(const Tensor& t) { return static_cast<size_t>(t.numel()); }

class NcclBackEnd : public DeviceBackEnd {
 public:
  NcclBackEnd(std::shared_ptr<Communicator> host, std::shared_ptr<NcclRank> rank, CommGroup of)
      : DeviceBackEnd(std::move(of), rank->device), host_(std::move(host)), rank_(std::move(rank)) {
    connect();
  }

  void enqueue(std::span<const Call> calls, Stream& stream) override {
    const Call& first = calls.front();
    if (group.size() == 1) return copy_alone(first, stream);
    SpanInfo span = span_of(calls.back());  // in an exchange, the receive's
    if (calls.size() > 1) span.name = "exchange";
    trivet::enqueue(stream, span, [&](cudaStream_t on) {
      try {
        group_->call(span.name,
                     [&](ncclComm_t comm) { return calls.size() > 1 ? both(calls, comm, on) : one(first, comm, on); });
      } catch (const Error&) {
        rank_->poll();  // the error may be an earlier call's
        throw;
      }
    });
  }

  Memory* buffer_memory() override { return &rank_->memory; }
  std::shared_ptr<void> register_buffer(Tensor memory) override {
    if (group.size() == 1) return nullptr;
    return {group_->register_buffer(memory), [nccl = group_](void* handle) { nccl->deregister(handle); }};
  }

  void barrier() override { host_->barrier(); }

  std::shared_ptr<CommBackEnd> split(const std::vector<int>& members, CommGroup part) override {
    auto host = host_->split(members, part.name + " (host)", part.category);
    return host ? std::make_shared<NcclBackEnd>(std::move(host), rank_, std::move(part)) : nullptr;
  }

  void abort(const std::string& why) noexcept override {
    host_->abort(why);  // first, so that other ranks report this cause, not a peer that NCCL finds missing
    rank_->abort(why);
  }
  Failure failure() const override { return host_->failure(); }
  void set_abort_diagnostics(std::function<std::string()> abort_diagnostics) override {
    rank_->set_abort_diagnostics(std::move(abort_diagnostics));
  }

 private:
  ncclResult_t one(const Call& call, ncclComm_t comm, cudaStream_t on) const {
    const Tensor &in = call.in, &out = call.out;
    switch (call.kind) {
      case CommCall::all_reduce:
        return ncclAllReduce(in.data, out.data, count(in), nccl_type(in.dtype), nccl_op(call.op), comm, on);
      case CommCall::reduce_scatter:
        return ncclReduceScatter(in.data, out.data, count(out), nccl_type(in.dtype), nccl_op(call.op), comm, on);
      case CommCall::all_gather: return ncclAllGather(in.data, out.data, count(in), nccl_type(in.dtype), comm, on);
      case CommCall::broadcast:
        return ncclBroadcast(in.data, out.data, count(in), nccl_type(in.dtype), call.peer, comm, on);
      case CommCall::transfer:
        if (call.sends) return ncclSend(in.data, count(in), nccl_type(in.dtype), call.peer, comm, on);
        return ncclRecv(out.data, count(out), nccl_type(out.dtype), call.peer, comm, on);
      case CommCall::barrier:
      case CommCall::split: break;
    }
    return ncclInvalidUsage;
  }

  // NCCL starts all calls of a group together.
  ncclResult_t both(std::span<const Call> calls, ncclComm_t comm, cudaStream_t on) const {
    ncclResult_t first_error = ncclGroupStart();
    if (first_error != ncclSuccess) return first_error;
    for (const Call& call : calls)
      if (const ncclResult_t result = one(call, comm, on); first_error == ncclSuccess && NcclGroup::is_error(result))
        first_error = result;
    const ncclResult_t ended = ncclGroupEnd();
    return first_error != ncclSuccess ? first_error : ended;
  }

  void copy_alone(const Call& call, Stream& stream) const {
    check_cuda(cudaMemcpyAsync(call.out.data, call.in.data, static_cast<size_t>(call.in.bytes()),
                               cudaMemcpyDeviceToDevice, raw(stream)),
               "cudaMemcpyAsync");
  }

  // Rank 0 creates the id and broadcasts it over the host's group.
  void connect() {
    if (group.size() == 1) return;
    ncclUniqueId id;
    std::memset(&id, 0, sizeof id);
    if (group.rank == 0)
      if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess)
        fail("group '" + group.name + "': ncclGetUniqueId: " + ncclGetErrorString(result));
    id = HostWorld(*host_).broadcast(id);
    group_ = rank_->add(group.name, group.rank, group.size(), most_ctas(group.category));
    group_->open(id);
    if (group.size() == 2 && group.category == comm_of("pipeline")) connect_pair();
  }

  // NCCL connects two ranks in their first transfer, which blocks both hosts until both have called. The two ends of a
  // pipeline channel would call at different times and deadlock through other channels, so they are connected now.
  void connect_pair() {
    const auto stream = rank_->device.create_side_stream(StreamPriority::normal);
    void* const memory = rank_->device.allocate(2);
    const int peer = 1 - group.rank;
    try {
      const Tensor out{memory, DType::u8, {1}}, in{static_cast<std::byte*>(memory) + 1, DType::u8, {1}};
      const std::array<Call, 2> exchange{Call{.kind = CommCall::transfer, .in = out, .peer = peer, .sends = true},
                                         Call{.kind = CommCall::transfer, .out = in, .peer = peer}};
      enqueue(exchange, *stream);
      stream->synchronize();
    } catch (...) {
      rank_->device.deallocate(memory, 2);
      throw;
    }
    rank_->device.deallocate(memory, 2);
  }

  const std::shared_ptr<Communicator> host_;
  const std::shared_ptr<NcclRank> rank_;
  std::shared_ptr<NcclGroup> group_;  // null if the group has one rank
};

}  // namespace

bool built_with_nccl() { return true; }

int gpu_multiprocessors() {
  int device = 0, count = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return count;
}

std::unique_ptr<Communicator> create_nccl_communicator(Communicator& world, Device& device, double timeout_s,
                                                       double part) {
  check(device.kind() == DeviceKind::cuda, "create_nccl_communicator needs a CUDA device");
  auto rank = std::make_shared<NcclRank>(world, device, timeout_s, part);
  CommGroup group = world.group();
  group.name = "world";
  return std::make_unique<Communicator>(
      std::make_shared<NcclBackEnd>(unowned(world), std::move(rank), std::move(group)));
}

}  // namespace trivet
