// Streams and launches of the emulated runtime.
#include "tests/emulation/stream.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <set>

#include "tests/emulation/grid.h"

namespace trivet::emulation {
namespace {

std::mutex streams_mutex;
std::map<Stream*, std::shared_ptr<Stream>> streams;  // waiters keep a destroyed stream alive

// Held by a thread that queues work, or that waits for the device.
std::array<DriverLock, 64> device_locks;
DriverLock launch_lock;  // of the process
std::array<std::mutex, 64> host_functions;
std::array<std::vector<std::weak_ptr<Channel>>, 64> channels;  // [device], under streams_mutex

std::mutex limits_mutex;
std::map<const void*, size_t> shared_limits;  // for kernels that have asked for more than the default

// By default a kernel may use 48 KiB of shared memory in total. The size of its own variables is not known here: it is
// assumed to be a third.
constexpr size_t kSharedWithoutAsking = 32 * 1024;

size_t connections() {
  static const int asked = [] {
    const char* const value = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    return std::clamp(value ? std::atoi(value) : 8, 1, 32);
  }();
  return static_cast<size_t>(asked);
}

// A new channel or, with the strict driver once all exist, the channel with the fewest streams.
std::shared_ptr<Channel> channel_of(int device) {
  std::lock_guard lock(streams_mutex);
  auto& of_device = channels[static_cast<size_t>(device)];
  std::erase_if(of_device, [](const auto& channel) { return channel.expired(); });
  if (!driver().strict || of_device.size() < connections()) {
    auto made = std::make_shared<Channel>(of_device.size());
    of_device.push_back(made);
    return made;
  }
  return std::ranges::min_element(of_device, {}, [](const auto& channel) { return channel.use_count(); })->lock();
}

}  // namespace

std::atomic<uint64_t> pieces_begun = 0, pieces_running = 0;

Channel::Channel(uint64_t number) : number_(number), thread_([this] { serve(); }) {}

Channel::~Channel() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Channel::queue(Work work, int64_t entries, int64_t& of_stream) {
  constexpr int64_t kEntries = 1024;
  const auto has_room = [&] { return entries_ == 0 || entries_ + entries <= kEntries; };
  if (driver().strict) {
    {
      std::lock_guard lock(mutex_);
      driver().full += !has_room();
      if (!has_room()) wanted_ = queued_;
    }
    changed_.notify_all();
    wait_until(mutex_, changed_, Waiting::strict,
               "a launch waits for room in a channel, and holds the process's launch lock", has_room);
  }
  {
    std::lock_guard lock(mutex_);
    if (work_.empty()) channel_is_busy(true);
    work_.emplace_back(std::move(work), entries, &of_stream);
    ++queued_;
    entries_ += entries;
    of_stream += entries;
    int64_t most = driver().most_queued;
    while (most < entries_ && !driver().most_queued.compare_exchange_weak(most, entries_)) {
    }
  }
  changed_.notify_all();
}

void Channel::drain(const int64_t& of_stream, Waiting::Kind kind, const std::string& why) {
  hurry(queued());
  wait_until(mutex_, changed_, kind, why, [&] { return of_stream == 0; });
}

void Channel::finish_running(const std::string& why) {
  uint64_t before = 0;
  {
    std::lock_guard lock(mutex_);
    before = finished_;
  }
  wait_until(mutex_, changed_, Waiting::strict, why, [&] { return !runs_ || finished_ != before; });
}

void Channel::set_runs(bool runs) {
  {
    std::lock_guard lock(mutex_);
    runs_ = runs;
  }
  changed_.notify_all();
}

uint64_t Channel::queued() {
  std::lock_guard lock(mutex_);
  return queued_;
}

void Channel::hurry(uint64_t pieces) {
  if (driver().late_channels == 0) return;
  {
    std::lock_guard lock(mutex_);
    wanted_ = std::max(wanted_, pieces);
  }
  changed_.notify_all();
}

// If this channel is to be late, returns only once something waits for its next piece of work. A host thread may wait
// for a host function without calling the driver, so after a while the piece runs anyway.
void Channel::hold_back(std::unique_lock<std::mutex>& lock) {
  if ((driver().late_channels >> number_ % 64 & 1) == 0) return;
  const bool wanted =
      changed_.wait_for(lock, std::chrono::milliseconds(20), [&] { return finished_ < wanted_ || ends_; });
  if (wanted) ++driver().held_back;
}

namespace {

thread_local Channel* served = nullptr;

}  // namespace

RunsNothing::RunsNothing() {
  if (served) served->set_runs(false);
}
RunsNothing::~RunsNothing() {
  if (served) served->set_runs(true);
}

void Channel::serve() {
  serve_channel();
  served = this;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !work_.empty() || ends_; });
    if (work_.empty()) return;
    hold_back(lock);
    {
      const Work work = std::move(work_.front().work);
      runs_ = true;
      lock.unlock();
      ++pieces_running, ++pieces_begun;
      work();
      --pieces_running;
    }
    lock.lock();
    entries_ -= work_.front().entries;
    *work_.front().of_stream -= work_.front().entries;
    work_.pop_front();
    runs_ = false;
    ++finished_;
    if (work_.empty()) channel_is_busy(false);
    changed_.notify_all();
  }
}

Stream::Stream(int device) : device_(device), channel_(channel_of(device)) {}
Stream::~Stream() { drain(); }

Stream& of(cudaStream_t stream) {
  if (!stream) broken("the default stream: Trivet's work is on streams of its own");
  return *reinterpret_cast<Stream*>(stream);
}

void drain_all(int device, const std::string& why) {
  std::lock_guard alone(device_locks[static_cast<size_t>(device)]);
  std::vector<std::shared_ptr<Stream>> all;
  {
    std::lock_guard lock(streams_mutex);
    for (const auto& [raw, stream] : streams)
      if (stream->device() == device) all.push_back(stream);
  }
  for (const auto& stream : all)
    stream->drain(Waiting::strict, why + ", which waits for the device and holds its lock");
}

void may_wait(const char* call) {
  if (!driver().strict) return;
  const auto device = static_cast<size_t>(current_device());
  std::lock_guard alone(device_locks[device]);
  std::vector<std::shared_ptr<Channel>> all;
  {
    std::lock_guard lock(streams_mutex);
    for (const auto& channel : channels[device])
      if (auto held = channel.lock()) all.push_back(std::move(held));
  }
  for (const auto& channel : all)
    channel->finish_running(std::string(call) + ", which waits for what runs on the device and holds its lock");
}

void load(int device, uint64_t what, const char* kind) {
  if (!driver().strict || !driver().lazy) return;
  {
    static std::mutex mutex;
    static std::set<std::pair<int, uint64_t>> loaded;
    std::lock_guard lock(mutex);
    if (!loaded.emplace(device, what).second) return;
  }
  drain_all(device, std::string("the first use of ") + kind);
}

cudaError_t allowed_anywhere() { return serves_channel() ? cudaErrorNotPermitted : cudaSuccess; }

cudaError_t add(cudaStream_t stream, Work work, int64_t entries) {
  if (const cudaError_t status = allowed_anywhere(); status != cudaSuccess) return status;
  Stream& to = of(stream);
  if (to.capture) {
    to.capture->work.push_back(std::move(work));
    return cudaSuccess;
  }
  add_caller();
  std::lock_guard lock(device_locks[static_cast<size_t>(to.device())]);
  std::unique_lock launches(launch_lock, std::defer_lock);
  if (driver().strict) launches.lock();
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
  const int device = of(how.stream).device();
  load(device, reinterpret_cast<uintptr_t>(kernel), "a kernel");
  return add(how.stream, [grid, block, shared = how.dynamicSmemBytes, thread, seed = launches++, device] {
    std::vector<int64_t> pieces;
    const bool counts = driver().counts;
    run_grid(grid, block, shared, thread, seed, counts ? &pieces : nullptr);
    if (counts) driver().grid_time = makespan(pieces, free_multiprocessors(device));
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
  may_wait("the creation of a stream");
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
  std::shared_ptr<Stream> last;  // is destroyed outside of the lock
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
  drain_all(current_device(), "cudaDeviceSynchronize");
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return add(stream, [=, device = of(stream).device()] {
    std::unique_lock lock(host_functions[static_cast<size_t>(device)], std::defer_lock);
    if (driver().strict) lock.lock();
    function(data);
  });
}

}  // extern "C"
