// Streams and launches of the emulated runtime.
#include "tests/emulation/stream.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <shared_mutex>

#include "tests/emulation/grid.h"

namespace trivet::emulation {
namespace {

std::mutex streams_mutex;
std::map<Stream*, std::shared_ptr<Stream>> streams;  // whoever waits for one keeps it, should it be destroyed meanwhile

thread_local bool in_stream = false;  // this is a stream's thread

// Held by who queues something, and alone by who waits for the device.
std::array<std::shared_mutex, 64> device_mutexes;

std::mutex limits_mutex;
std::map<const void*, size_t> shared_limits;  // of kernels that have asked for more

// Without asking a kernel has 48 KiB of shared memory in all. How much of it its own variables take is not known here:
// as if it were a third.
constexpr size_t kSharedWithoutAsking = 32 * 1024;

}  // namespace

Stream::Stream(int device) : device_(device), thread_([this] { serve(); }) {}

Stream::~Stream() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Driver& driver() {
  static Driver seen;
  return seen;
}

void Stream::queue(Work work, int64_t entries) {
  {
    std::lock_guard lock(mutex_);
    work_.emplace_back(std::move(work), entries);
    entries_ += entries;
    int64_t most = driver().most_queued;
    while (most < entries_ && !driver().most_queued.compare_exchange_weak(most, entries_)) {
    }
  }
  changed_.notify_all();
}

void Stream::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return work_.empty() && !busy_; });
}

void Stream::serve() {
  in_stream = true;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !work_.empty() || ends_; });
    if (work_.empty()) return;
    busy_ = true;
    int64_t entries = 0;
    {
      const auto [work, its_entries] = std::move(work_.front());
      entries = its_entries;
      work_.pop_front();
      lock.unlock();
      work();
    }
    lock.lock();
    entries_ -= entries;
    busy_ = false;
    if (work_.empty()) changed_.notify_all();
  }
}

Stream& of(cudaStream_t stream) {
  if (!stream) broken("the default stream: Trivet's work is on streams of its own");
  return *reinterpret_cast<Stream*>(stream);
}

void drain_all(int device) {
  std::unique_lock alone(device_mutexes[static_cast<size_t>(device)]);
  std::vector<std::shared_ptr<Stream>> all;
  {
    std::lock_guard lock(streams_mutex);
    for (const auto& [raw, stream] : streams)
      if (stream->device() == device) all.push_back(stream);
  }
  for (const auto& stream : all) stream->drain();
}

cudaError_t allowed_anywhere() { return in_stream ? cudaErrorNotPermitted : cudaSuccess; }

cudaError_t add(cudaStream_t stream, Work work, int64_t entries) {
  if (const cudaError_t status = allowed_anywhere(); status != cudaSuccess) return status;
  Stream& to = of(stream);
  if (to.capture) {
    to.capture->work.push_back(std::move(work));
    return cudaSuccess;
  }
  std::shared_lock lock(device_mutexes[static_cast<size_t>(to.device())]);
  to.queue(std::move(work), entries);
  return cudaSuccess;
}

cudaError_t launch_kernel(const cudaLaunchConfig_t& how, const void* kernel, const std::function<void()>& thread) {
  static std::atomic<uint64_t> launches{0};
  const dim3 grid = how.gridDim, block = how.blockDim;
  const size_t threads = size_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
    return cudaErrorInvalidConfiguration;
  {
    std::lock_guard lock(limits_mutex);
    const auto limit = shared_limits.find(kernel);
    if (how.dynamicSmemBytes > (limit == shared_limits.end() ? kSharedWithoutAsking : limit->second))
      return cudaErrorInvalidValue;
  }
  return add(how.stream, [grid, block, shared = how.dynamicSmemBytes, thread, seed = launches++] {
    run_grid(grid, block, shared, thread, seed);
  });
}

}  // namespace trivet::emulation

using namespace trivet::emulation;

extern "C" {

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > 227 * 1024)
    return cudaErrorInvalidValue;
  std::lock_guard lock(limits_mutex);
  shared_limits[kernel] = std::max(static_cast<size_t>(value), shared_limits[kernel]);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  if (const cudaError_t status = allowed_anywhere(); status != cudaSuccess) return status;
  const auto made = std::make_shared<Stream>(current_device());
  std::lock_guard lock(streams_mutex);
  streams[made.get()] = made;
  *stream = reinterpret_cast<cudaStream_t>(made.get());
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::shared_ptr<Stream> last;  // ends outside of the lock
  {
    std::lock_guard lock(streams_mutex);
    const auto found = streams.find(&of(stream));
    if (found == streams.end()) return cudaErrorInvalidResourceHandle;
    last = std::move(found->second);
    streams.erase(found);
  }
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (of(stream).capture) {
    of(stream).capture->refused = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  if (const cudaError_t status = allowed(); status != cudaSuccess) return status;
  of(stream).drain();
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t status = allowed(); status != cudaSuccess) return status;
  drain_all(current_device());
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return add(stream, [=] { function(data); });
}

}  // extern "C"
