// Streams, events and launches of the emulated runtime.
#include "tests/emulation/stream.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>

#include "tests/emulation/grid.h"

namespace trivet::emulation {
namespace {

std::mutex streams_mutex;
std::map<Stream*, std::shared_ptr<Stream>> streams;  // whoever waits for one keeps it, should it be destroyed meanwhile

thread_local bool in_stream = false;  // this is a stream's thread
thread_local int strict_captures = 0;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::shared_ptr<EventState>& of(cudaEvent_t event) { return *reinterpret_cast<std::shared_ptr<EventState>*>(event); }

std::mutex limits_mutex;
std::map<const void*, size_t> shared_limits;  // of kernels that have asked for more

}  // namespace

void EventState::wait_for(uint64_t record) {
  std::unique_lock lock(mutex);
  happened.wait(lock, [&] { return complete >= record; });
}

Stream::Stream(int device) : device_(device), thread_([this] { serve(); }) {}

Stream::~Stream() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::queue(Work work) {
  {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
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
    {
      const Work work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
    }
    lock.lock();
    busy_ = false;
    if (work_.empty()) changed_.notify_all();
  }
}

Stream& of(cudaStream_t stream) {
  if (!stream) broken("the default stream: Trivet's work is on streams of its own");
  return *reinterpret_cast<Stream*>(stream);
}

void drain_all(int device) {
  std::vector<std::shared_ptr<Stream>> all;
  {
    std::lock_guard lock(streams_mutex);
    for (const auto& [raw, stream] : streams)
      if (stream->device() == device) all.push_back(stream);
  }
  for (const auto& stream : all) stream->drain();
}

cudaError_t allowed_anywhere() { return in_stream ? cudaErrorNotPermitted : cudaSuccess; }
cudaError_t allowed() { return strict_captures > 0 ? cudaErrorStreamCaptureUnsupported : allowed_anywhere(); }

cudaError_t add(cudaStream_t stream, Work work) {
  if (const cudaError_t status = allowed_anywhere(); status != cudaSuccess) return status;
  Stream& to = of(stream);
  if (to.capture) to.capture->work.push_back(std::move(work));
  else to.queue(std::move(work));
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
    if (how.dynamicSmemBytes > (limit == shared_limits.end() ? 48 * 1024 : limit->second)) return cudaErrorInvalidValue;
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

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  if (const cudaError_t status = allowed_anywhere(); status != cudaSuccess) return status;
  auto* state = new std::shared_ptr(std::make_shared<EventState>());
  (*state)->timed = !(flags & cudaEventDisableTiming);
  *event = reinterpret_cast<cudaEvent_t>(state);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &of(event);  // streams that are still to come to it hold its state
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t status = allowed_anywhere(); status != cudaSuccess) return status;
  const std::shared_ptr<EventState> state = of(event);
  if (const auto& capture = of(stream).capture) {
    state->captured = capture;
    return cudaSuccess;
  }
  uint64_t record = 0;
  {
    std::lock_guard lock(state->mutex);
    record = ++state->recorded;
    state->captured.reset();
  }
  return add(stream, [state, record] {
    {
      std::lock_guard lock(state->mutex);
      state->complete = record;
      state->at_ns = now_ns();
    }
    state->happened.notify_all();
  });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  const std::shared_ptr<EventState> state = of(event);
  Stream& waits = of(stream);
  if (const auto captured = state->captured.lock()) {
    if (waits.capture && waits.capture != captured) return cudaErrorStreamCaptureMerge;
    if (!waits.capture) captured->streams.push_back(stream);
    waits.capture = captured;
    return cudaSuccess;  // what is captured runs in the order of the calls
  }
  if (waits.capture) {
    waits.capture->refused = true;
    return cudaErrorStreamCaptureIsolation;
  }
  uint64_t record = 0;
  {
    std::lock_guard lock(state->mutex);
    record = state->recorded;
  }
  return add(stream, [state, record] { state->wait_for(record); });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t status = allowed(); status != cudaSuccess) return status;
  const std::shared_ptr<EventState> state = of(event);
  if (!state->captured.expired()) return cudaErrorCapturedEvent;
  std::lock_guard lock(state->mutex);
  return state->complete >= state->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t status = allowed(); status != cudaSuccess) return status;
  const std::shared_ptr<EventState> state = of(event);
  if (!state->captured.expired()) return cudaErrorCapturedEvent;
  uint64_t record = 0;
  {
    std::lock_guard lock(state->mutex);
    record = state->recorded;
  }
  state->wait_for(record);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  int64_t at[2];
  for (const auto& [event, ns] : {std::pair{begin, &at[0]}, {end, &at[1]}}) {
    const std::shared_ptr<EventState> state = of(event);
    std::lock_guard lock(state->mutex);
    if (!state->timed || state->recorded == 0) return cudaErrorInvalidResourceHandle;
    if (state->complete < state->recorded) return cudaErrorNotReady;
    *ns = state->at_ns;
  }
  *milliseconds = static_cast<float>(static_cast<double>(at[1] - at[0]) * 1e-6);
  return cudaSuccess;
}

// ---- captures

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (const cudaError_t status = allowed_anywhere(); status != cudaSuccess) return status;
  Stream& captures = of(stream);
  if (captures.capture) return cudaErrorIllegalState;
  captures.capture = std::make_shared<Capture>();
  captures.capture->streams.push_back(stream);
  // A capture in the mode "global" holds for other threads too; Trivet's ranks may be threads, and have no use for it.
  if (mode == cudaStreamCaptureModeGlobal) broken("a capture that other threads would feel");
  captures.capture->strict = mode == cudaStreamCaptureModeThreadLocal;
  strict_captures += captures.capture->strict;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = of(stream).capture;
  if (!capture) return cudaErrorIllegalState;
  if (capture->streams.front() != stream) return cudaErrorStreamCaptureUnmatched;
  for (cudaStream_t member : capture->streams) of(member).capture.reset();
  strict_captures -= capture->strict;
  if (capture->refused) return cudaErrorStreamCaptureInvalidated;
  *graph = reinterpret_cast<cudaGraph_t>(new std::vector<Work>(std::move(capture->work)));
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const auto& capture = of(stream).capture;
  *status = !capture           ? cudaStreamCaptureStatusNone
            : capture->refused ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = reinterpret_cast<cudaGraphExec_t>(
      new std::shared_ptr(std::make_shared<const std::vector<Work>>(*reinterpret_cast<std::vector<Work>*>(graph))));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const auto work = *reinterpret_cast<std::shared_ptr<const std::vector<Work>>*>(exec);
  return add(stream, [work] {
    for (const Work& each : *work) each();
  });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete reinterpret_cast<std::shared_ptr<const std::vector<Work>>*>(exec);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<std::vector<Work>*>(graph);
  return cudaSuccess;
}

}  // extern "C"
