// Captures and graphs of the emulated runtime.
#include "tests/emulation/grid.h"
#include "tests/emulation/stream.h"

namespace trivet::emulation {
namespace {

thread_local int strict_captures = 0;

}  // namespace

cudaError_t allowed() { return strict_captures > 0 ? cudaErrorStreamCaptureUnsupported : allowed_anywhere(); }

}  // namespace trivet::emulation

using namespace trivet::emulation;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (const cudaError_t status = allowed_anywhere(); status != cudaSuccess) return status;
  Stream& captures = of(stream);
  if (captures.capture) return cudaErrorIllegalState;
  captures.capture = std::make_shared<Capture>();
  captures.capture->streams.push_back(stream);
  // A capture in the mode "global" affects other threads too; Trivet, whose ranks may be threads, never uses it.
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
  return add(
      stream,
      [work] {
        for (const Work& each : *work) each();
      },
      static_cast<int64_t>(work->size()));
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes) return cudaErrorNotSupported;
  *count = reinterpret_cast<std::vector<Work>*>(graph)->size();
  return cudaSuccess;
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
