#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <fmt/format.h>

#include "kernels/cuda/cuda_gemms.h"

namespace trivet {
namespace {

int attribute_of_current_device(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

// Hopper is exactly 9.0: later GPUs have neither its architecture-specific instructions (sm_90a) nor, in cuBLASLt, its
// block scales.
struct Capability {
  int major = attribute_of_current_device(cudaDevAttrComputeCapabilityMajor);
  int minor = attribute_of_current_device(cudaDevAttrComputeCapabilityMinor);
  bool hopper() const { return major == 9 && minor == 0; }
};

}  // namespace

CudaOps::CudaOps(Device& device, const CudaOptions& options)
    : device_(device),
      options_(options),
      multiprocessors_(attribute_of_current_device(cudaDevAttrMultiProcessorCount)),
      hopper_(options.hopper_attention && Capability().hopper()),
      workspaces_(device),
      gemms_(std::make_unique<CudaGemms>(options)) {
  check(device.kind() == DeviceKind::cuda, "CudaOps needs a CUDA device");
  if (const Capability found; options.block_scales && (!found.hopper() || gemms_->version() < 120900))
    throw ConfigError(
        fmt::format("a GPU of compute capability 9.0 (found {}.{}) and cuBLASLt 12.9 or newer (found {}.{})",
                    found.major, found.minor, gemms_->version() / 10000, gemms_->version() / 100 % 100),
        Lack::block_scales);
}

CudaOps::~CudaOps() = default;

void CudaOps::run(const AnyOp& any, Stream& stream) {
  std::visit(
      [&](const auto& op) {
        check_arguments(op);
        enqueue(stream, op.kSpan, [&](cudaStream_t raw_stream) { launch(op, raw_stream); });
      },
      any);
}

std::unique_ptr<Ops> create_cuda_ops(Device& device, const CudaOptions& options) {
  return std::make_unique<CudaOps>(device, options);
}

CudaWorkspaces::~CudaWorkspaces() {
  for (const auto& [stream, blocks] : blocks_)
    for (const Block& block : blocks) device_.deallocate(block.data, block.bytes);
  for (const auto& [stream, counters] : counters_) device_.deallocate(counters, kCounterBytes);
}

int* CudaWorkspaces::counters(cudaStream_t stream) {
  int*& counters = counters_[stream];
  if (!counters) {
    counters = static_cast<int*>(device_.allocate(kCounterBytes));
    check_cuda(cudaMemsetAsync(counters, 0, kCounterBytes, stream), "cudaMemsetAsync");
  }
  return counters;
}

std::byte* CudaWorkspaces::take(cudaStream_t stream, int64_t bytes) {
  std::vector<Block>& blocks = blocks_[stream];
  if (blocks.empty() || blocks.back().bytes < bytes) {
    // At least doubles, so that the old blocks together are never larger than the one in use.
    const int64_t size = std::max(bytes, blocks.empty() ? 0 : 2 * blocks.back().bytes);
    blocks.push_back({static_cast<std::byte*>(device_.allocate(size)), size});
  }
  return blocks.back().data;
}

}  // namespace trivet
