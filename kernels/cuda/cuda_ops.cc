#include "kernels/cuda/cuda_ops.h"

#include <algorithm>

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
  for (const Block& block : outgrown_) device_.deallocate(block.data, block.bytes);
}

std::byte* CudaWorkspaces::take(Stream& stream, int64_t bytes) {
  Block& block = blocks_[raw(stream)];
  if (block.bytes < bytes) {
    bytes = std::max(bytes, 2 * block.bytes);  // so that all that are outgrown take no more than the last
    auto* const larger = static_cast<std::byte*>(device_.allocate(bytes));
    if (block.data) outgrown_.push_back(block);
    block = {larger, bytes};
  }
  return block.data;
}

}  // namespace trivet
