// Memory and devices of the emulated runtime.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <map>
#include <string>
#include <thread>

#include "tests/emulation/block_writes.h"
#include "tests/emulation/grid.h"
#include "tests/emulation/stream.h"
#include "tests/emulation/warpgroup.h"

namespace trivet::emulation {
namespace {

thread_local int device = 0;

constexpr size_t kMemory = size_t{8} << 30;  // per GPU

struct Block {
  size_t bytes;
  int device;  // -1: pinned host memory
};
std::mutex blocks_mutex;
std::map<uintptr_t, Block> blocks;  // by address

// Whether a launcher has started the ranks as processes. The emulated NCCL connects threads only, so these
// processes' GPUs have one identity: ranks that share a GPU use the staged communicator or are refused NCCL for lack of
// GPUs.
bool ranks_are_processes() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char* size = std::getenv(name); size && std::atoi(size) > 1) return true;
  return false;
}

int device_count() {
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible && !*visible) return 0;
  const char* asked = std::getenv("TRIVET_EMULATED_GPUS");
  return asked ? std::atoi(asked) : 8;
}

size_t used_of(int device) {  // REQUIRES: the mutex
  size_t used = 0;
  for (const auto& [address, block] : blocks) used += block.device == device ? block.bytes : 0;
  return used;
}

void* allocate(size_t bytes, int on) {
  std::lock_guard lock(blocks_mutex);
  if (on >= 0 && used_of(on) + bytes > kMemory) return nullptr;
  // Exactly `bytes`, so that AddressSanitizer knows the end.
  void* data = nullptr;
  if (posix_memalign(&data, 256, std::max<size_t>(bytes, 1)) != 0) return nullptr;
  std::memset(data, 0xff, bytes);
  blocks[reinterpret_cast<uintptr_t>(data)] = {bytes, on};
  return data;
}

bool release(void* data, bool of_device) {
  {
    std::lock_guard lock(blocks_mutex);
    const auto found = blocks.find(reinterpret_cast<uintptr_t>(data));
    if (found == blocks.end() || (found->second.device >= 0) != of_device) return false;
    blocks.erase(found);
  }
  std::free(data);
  return true;
}

}  // namespace

std::vector<GpuMemory> gpu_memory(size_t most) {
  std::lock_guard lock(blocks_mutex);
  std::vector<GpuMemory> found;
  size_t sum = 0;
  for (const auto& [address, block] : blocks) {
    if (block.device < 0) continue;
    if (sum += block.bytes; sum > most) return {};
    found.push_back({reinterpret_cast<const std::byte*>(address), block.bytes});
  }
  return found;
}

namespace {

// Location of the bytes: a GPU's number, -1 for pinned host memory, -2 for other host memory.
int place_of(const void* data, size_t bytes) {
  std::lock_guard lock(blocks_mutex);
  const auto address = reinterpret_cast<uintptr_t>(data);
  auto after = blocks.upper_bound(address);
  if (after == blocks.begin()) return -2;
  const auto& [begin, block] = *--after;
  if (address >= begin + block.bytes) return -2;
  if (address + bytes > begin + block.bytes) broken("a copy goes beyond the end of its memory");
  return block.device;
}

CUresult wait_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
  if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_INVALID_VALUE;
  auto* at = reinterpret_cast<uint32_t*>(address);
  const cudaError_t status = add(stream, [at, value] {
    const auto is_over = [&] {
      return static_cast<int32_t>(std::atomic_ref(*at).load(std::memory_order_acquire) - value) >= 0;
    };
    if (is_over()) return;
    const RunsNothing of_this_channel;
    const Waiting waiting(Waiting::memory, "a stream waits for a word in memory", is_over);
    while (!is_over())
      std::this_thread::sleep_for(std::chrono::microseconds(20));  // like the GPU's front end, which polls repeatedly
  });
  return status == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// The environment's value when CUDA started, which is at the first call here.
CUmoduleLoadingMode loading_mode() {
  static const CUmoduleLoadingMode mode = [] {
    const char* asked = std::getenv("CUDA_MODULE_LOADING");
    return asked && std::string(asked) == "EAGER" ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  }();
  return mode;
}
CUresult get_loading_mode(CUmoduleLoadingMode* mode) {
  *mode = loading_mode();
  return CUDA_SUCCESS;
}

// Supports the three-dimensional bf16 maps that Trivet creates.
CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data, const cuuint64_t* size,
                      const cuuint64_t* stride, const cuuint32_t* box, const cuuint32_t* element_stride,
                      CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                      CUtensorMapFloatOOBfill fill) {
  EncodedTileMap encoded{kTileMapMagic, static_cast<const unsigned char*>(data), {}, {}, {}, 2, 16};
  if (swizzle == CU_TENSOR_MAP_SWIZZLE_32B) encoded.swizzle_bytes = 32;
  if (swizzle == CU_TENSOR_MAP_SWIZZLE_64B) encoded.swizzle_bytes = 64;
  if (swizzle == CU_TENSOR_MAP_SWIZZLE_128B) encoded.swizzle_bytes = 128;
  bool right = type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 && rank == 3 && interleave == CU_TENSOR_MAP_INTERLEAVE_NONE &&
               fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && reinterpret_cast<uintptr_t>(map) % 64 == 0 &&
               reinterpret_cast<uintptr_t>(data) % 16 == 0;
  for (int i = 0; i < 3; ++i) {
    encoded.size[i] = size[i];
    encoded.box[i] = box[i];
    right =
        right && size[i] >= 1 && size[i] <= uint64_t{1} << 32 && box[i] >= 1 && box[i] <= 256 && element_stride[i] == 1;
  }
  for (int i = 0; i < 2; ++i) {
    encoded.stride[i] = stride[i];
    right = right && stride[i] % 16 == 0 && stride[i] < uint64_t{1} << 40;
  }
  const uint32_t row_bytes = box[0] * encoded.element_bytes;
  right = right && row_bytes % 16 == 0 && (swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || row_bytes <= encoded.swizzle_bytes);
  if (!right) return CUDA_ERROR_INVALID_VALUE;
  static_assert(sizeof encoded <= sizeof *map);
  std::memcpy(map, &encoded, sizeof encoded);
  return CUDA_SUCCESS;
}

}  // namespace

int current_device() { return device; }

bool on_a_gpu(const void* data, size_t bytes) { return place_of(data, bytes) >= 0; }

}  // namespace trivet::emulation

using namespace trivet::emulation;

extern "C" {

// ---- memory

cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (const cudaError_t status = allowed(); status != cudaSuccess) return status;
  *data = allocate(bytes, current_device());
  return *data ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* data) {
  if (const cudaError_t status = allowed(); status != cudaSuccess) return status;
  if (!data) return cudaSuccess;
  const int where = place_of(data, 1);
  if (where >= 0) drain_all(where, "cudaFree");
  return release(data, true) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t) {
  if (const cudaError_t status = allowed(); status != cudaSuccess) return status;
  *data = allocate(bytes, current_device());
  return *data ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  if (const cudaError_t status = allowed(); status != cudaSuccess) return status;
  return add(stream, [data] {
    if (!release(data, true)) broken("cudaFreeAsync of what is no device memory");
  });
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned int) {
  if (const cudaError_t status = allowed(); status != cudaSuccess) return status;
  may_wait("cudaHostAlloc");
  *data = allocate(bytes, -1);
  return *data ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void* data) {
  if (const cudaError_t status = allowed(); status != cudaSuccess) return status;
  if (!data) return cudaSuccess;
  for (int i = 0; i < device_count(); ++i) drain_all(i, "cudaFreeHost");
  return release(data, false) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  std::lock_guard lock(blocks_mutex);
  *total = kMemory;
  *free = kMemory - used_of(current_device());
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  const int target = place_of(to, bytes), source = place_of(from, bytes);
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice || target >= 0;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice || source >= 0;
  if (to_device != (target >= 0) || from_device != (source >= 0)) return cudaErrorInvalidValue;
  if (kind == cudaMemcpyHostToDevice && from_device) return cudaErrorInvalidValue;
  if (kind == cudaMemcpyDeviceToHost && to_device) return cudaErrorInvalidValue;
  const cudaError_t status = add(stream, [=] { std::memmove(to, from, bytes); });
  if (status == cudaSuccess && (target == -2 || source == -2)) {
    if (of(stream).capture) return cudaErrorStreamCaptureUnsupported;
    of(stream).drain();
  }
  return status;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (place_of(to, bytes) < 0) return cudaErrorInvalidValue;
  return add(stream, [=] { std::memset(to, value, bytes); });
}

// ---- devices and errors

cudaError_t cudaGetDeviceCount(int* count) {
  loading_mode();
  *count = device_count();
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDevice(int* which) {
  *which = current_device();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int which) {
  if (const cudaError_t status = allowed_anywhere(); status != cudaSuccess) return status;
  if (which < 0 || which >= device_count()) return cudaErrorInvalidDevice;
  device = which;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int which) {
  if (which < 0 || which >= device_count()) return cudaErrorInvalidDevice;
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated GPU");
  properties->totalGlobalMem = kMemory;
  properties->multiProcessorCount = driver().multiprocessors;
  properties->major = 9;
  properties->uuid.bytes[0] = static_cast<char>(ranks_are_processes() ? 0 : which + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int which) {
  if (which < 0 || which >= device_count()) return cudaErrorInvalidDevice;
  std::snprintf(id, static_cast<size_t>(bytes), "0000:%02X:00.0", which + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int which) {
  if (which < 0 || which >= device_count()) return cudaErrorInvalidDevice;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = driver().multiprocessors; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = driver().compute_capability / 10; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = driver().compute_capability % 10; return cudaSuccess;
    default: return cudaErrorInvalidValue;
  }
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
// Every error is returned by the call that causes it; none is kept.
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t error) {
  static thread_local std::string name;
  name = "CUDA error " + std::to_string(error);
  return name.c_str();
}
const char* cudaGetErrorString(cudaError_t) { return "of the emulated runtime; driver_types.h tells its number"; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned int, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = std::string(name) == "cuStreamWaitValue32"      ? reinterpret_cast<void*>(&wait_value)
              : std::string(name) == "cuTensorMapEncodeTiled" ? reinterpret_cast<void*>(&encode_tiled)
              : std::string(name) == "cuModuleGetLoadingMode" ? reinterpret_cast<void*>(&get_loading_mode)
                                                              : nullptr;
  if (found) *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // extern "C"
