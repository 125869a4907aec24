// Events of the emulated runtime.
#include <chrono>

#include "tests/emulation/grid.h"
#include "tests/emulation/stream.h"

namespace trivet::emulation {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
             .count() +
         driver().clock_ahead_ns;
}

std::shared_ptr<EventState>& of(cudaEvent_t event) { return *reinterpret_cast<std::shared_ptr<EventState>*>(event); }

}  // namespace

void EventState::hurry() {
  std::shared_ptr<Channel> of_record;
  uint64_t pieces = 0;
  {
    std::lock_guard lock(mutex);
    of_record = channel.lock(), pieces = piece;
  }
  if (of_record) of_record->hurry(pieces);
}

void EventState::wait_for(uint64_t record) {
  hurry();
  const RunsNothing of_this_channel;
  wait_until(mutex, happened, Waiting::plain, "a stream or a thread waits for an event",
             [&] { return complete >= record; });
}

}  // namespace trivet::emulation

using namespace trivet::emulation;

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  if (const cudaError_t status = allowed_anywhere(); status != cudaSuccess) return status;
  auto* state = new std::shared_ptr(std::make_shared<EventState>());
  (*state)->timed = !(flags & cudaEventDisableTiming);
  (*state)->blocks = flags & cudaEventBlockingSync;
  *event = reinterpret_cast<cudaEvent_t>(state);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &of(event);  // streams that have yet to reach it hold its state
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
  const cudaError_t status = add(stream, [state, record] {
    {
      std::lock_guard lock(state->mutex);
      state->complete = record;
      state->at_ns = now_ns();
    }
    state->happened.notify_all();
  });
  const std::shared_ptr<Channel>& channel = of(stream).channel();
  const uint64_t queued = channel->queued();
  std::lock_guard lock(state->mutex);
  state->channel = channel, state->piece = queued;
  return status;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  const std::shared_ptr<EventState> state = of(event);
  Stream& waits = of(stream);
  if (const auto captured = state->captured.lock()) {
    if (waits.capture && waits.capture != captured) return cudaErrorStreamCaptureMerge;
    if (!waits.capture) captured->streams.push_back(stream);
    waits.capture = captured;
    return cudaSuccess;  // captured work runs in the order of the calls
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
  state->hurry();
  std::unique_lock lock(state->mutex);
  const uint64_t record = state->recorded;
  const auto complete = [&] { return state->complete >= record; };
  if (complete()) return cudaSuccess;
  ++driver().polls;
  // A host thread that polls leaves its core to the emulated GPU.
  state->happened.wait_for(lock, std::chrono::microseconds(500), complete);
  return cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t status = allowed(); status != cudaSuccess) return status;
  const std::shared_ptr<EventState> state = of(event);
  if (!state->captured.expired()) return cudaErrorCapturedEvent;
  if (!state->timed && !state->blocks) broken("a host thread that spins until an event that tells no time");
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

}  // extern "C"
