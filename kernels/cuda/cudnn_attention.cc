#include "kernels/cuda/cudnn_attention.h"

#include <array>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_graph.h"
#include "kernels/cuda/cudnn_plan.h"
#include "kernels/cuda/workspace.h"

namespace trivet {
namespace {

namespace t = attention_tensor;
using Memory = std::array<void*, t::count>;

void check_shape(const AttentionShape& z) {
  const auto refuse = [](const std::string& what) { throw ConfigError("cuDNN attention needs " + what); };
  if (z.dtype != DType::bf16) refuse(std::string("bf16, found ") + name_of(z.dtype));
  if (z.q.d % 8 != 0) refuse("head_dim % 8 == 0, found a head_dim of " + std::to_string(z.q.d));
  // cuDNN 9.26 crashes while it looks for an engine
  if (z.q.s < 2) refuse("at least 2 positions, found " + std::to_string(z.q.s));
  if (!heads_are_equidistant(z.q))
    refuse("one stride between query heads, found groups of " + std::to_string(z.q.members) +
           " heads that lie further apart, as in a tensor with their keys and values");
}

class Cudnn : public CudnnAttention {
 public:
  Cudnn(const AttentionShape& shape, bool deterministic)
      : shape_(shape),
        deterministic_(deterministic),
        handle_(create_handle()),
        forward_(library_, attention_forward_graph(shape), handle_.get()),
        backward_(library_, attention_backward_graph(shape, deterministic), handle_.get()) {}

  int64_t forward_bytes() const override { return forward_.workspace_bytes(); }
  int64_t backward_bytes() const override { return backward_parts(nullptr).bytes; }

  void forward(const AttentionArgs& args, std::byte* workspace, CUstream_st* stream) override {
    run(forward_, memory_of(args), workspace, stream);
  }
  void backward(const AttentionArgs& args, std::byte* workspace, CUstream_st* stream) override {
    const BackwardParts parts = backward_parts(workspace);
    Memory memory = memory_of(args);
    memory[t::delta] = parts.delta;
    memory[t::dquery_sum] = parts.dquery_sum;
    memory[t::dkey_share] = parts.dkey_share;
    memory[t::dvalue_share] = parts.dvalue_share;
    run(backward_, memory, parts.rest, stream);
  }

 private:
  using LibraryHandle = std::unique_ptr<std::remove_pointer_t<cudnnHandle_t>, decltype(&cudnnDestroy)>;
  struct BackwardParts {
    float *delta, *dquery_sum;
    bf16 *dkey_share, *dvalue_share;
    std::byte* rest;
    int64_t bytes;
  };

  LibraryHandle create_handle() const {
    cudnnHandle_t handle = nullptr;
    library_.check(library_.create(&handle), "cudnnCreate");
    return {handle, library_.destroy};
  }

  BackwardParts backward_parts(std::byte* workspace) const {
    WorkspaceCut cut(workspace);
    const int64_t columns = shape_.q.numel();
    const auto share = [&] { return shape_.q.members == 1 ? nullptr : cut.part<bf16>(columns); };
    float* const delta = cut.part<float>(columns / shape_.q.d);
    float* const dquery_sum = deterministic_ ? nullptr : cut.part<float>(columns);
    bf16 *const dkey_share = share(), *const dvalue_share = share();
    std::byte* const rest = cut.part<std::byte>(backward_.workspace_bytes());
    return {delta, dquery_sum, dkey_share, dvalue_share, rest, cut.bytes()};
  }

  static Memory memory_of(const AttentionArgs& args) {
    Memory memory{};
    const auto place = [&](int first, const QkvViews& views) {
      memory[first] = views.q.data(), memory[first + 1] = views.k.data(), memory[first + 2] = views.v.data();
    };
    place(t::query, args.qkv);
    place(t::dquery, args.dqkv);
    memory[t::out] = args.out.data();
    memory[t::lse] = args.lse;
    memory[t::dout] = args.dout.data();
    return memory;
  }

  void run(const CudnnPlan& plan, const Memory& memory, std::byte* workspace, CUstream_st* stream) {
    // Once: a call that a graph is being made of should queue kernels and nothing else.
    if (stream != stream_) library_.check(library_.set_stream(handle_.get(), stream), "cudnnSetStream");
    stream_ = stream;
    plan.run(handle_.get(), memory, workspace);
  }

  const AttentionShape shape_;
  const bool deterministic_;
  const CudnnLibrary library_;
  const LibraryHandle handle_;
  const CudnnPlan forward_, backward_;
  CUstream_st* stream_ = nullptr;  // the handle's, which begins with CUDA's default stream
};

}  // namespace

bool built_with_cudnn() { return true; }

std::unique_ptr<CudnnAttention> create_cudnn_attention(const AttentionShape& shape, bool deterministic) {
  check_shape(shape);
  return std::make_unique<Cudnn>(shape, deterministic);
}

}  // namespace trivet
