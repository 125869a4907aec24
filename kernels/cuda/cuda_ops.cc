#include "kernels/cuda/cuda_ops.h"

#include "kernels/cuda/cuda_products.h"

namespace trivet {
namespace {

int multiprocessors_of_current_device() {
  int device = 0, count = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return count;
}

}  // namespace

CudaOps::CudaOps(Device& device, const CudaOptions& options)
    : device_(device),
      options_(options),
      multiprocessors_(multiprocessors_of_current_device()),
      workspaces_(device),
      products_(std::make_unique<CudaProducts>(options)) {
  check(device.kind() == DeviceKind::cuda, "CudaOps needs a CUDA device");
}

CudaOps::~CudaOps() = default;

std::unique_ptr<Ops> create_cuda_ops(Device& device, const CudaOptions& options) {
  return std::make_unique<CudaOps>(device, options);
}

CudaWorkspaces::~CudaWorkspaces() {
  for (const auto& [stream, block] : blocks_) device_.deallocate(block.data, block.bytes);
}

std::byte* CudaWorkspaces::take(Stream& stream, int64_t bytes) {
  Block& block = blocks_[raw(stream)];
  if (block.bytes < bytes) {
    check_cuda(cudaStreamSynchronize(raw(stream)), "cudaStreamSynchronize");  // ops before this one may use the old one
    if (block.data) device_.deallocate(std::exchange(block.data, nullptr), std::exchange(block.bytes, 0));
    block.data = static_cast<std::byte*>(device_.allocate(bytes));
    block.bytes = bytes;
  }
  return block.data;
}

}  // namespace trivet
