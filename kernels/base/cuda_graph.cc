// CUDA graphs: a stream's work captured, instantiated, and launched as a whole.
#include "kernels/base/cuda_device.h"

namespace trivet {
namespace {

class CudaGraph : public Graph {
 public:
  explicit CudaGraph(cudaGraph_t graph) {
    check_cuda(cudaGraphInstantiate(executable_.out(), graph, 0), "cudaGraphInstantiate");
  }
  void launch(Stream& stream) override {
    enqueue(stream, {"graph"},
            [this](cudaStream_t raw) { check_cuda(cudaGraphLaunch(executable_, raw), "cudaGraphLaunch"); });
  }

 private:
  Handle<cudaGraphExec_t, cudaGraphExecDestroy> executable_;
};

// Events in a graph tell no times: while there is no row, operations record none.
class WithoutSpans {
 public:
  explicit WithoutSpans(Stream& stream) : stream_(stream), row_(stream.trace_row()) { stream_.set_trace_row(nullptr); }
  ~WithoutSpans() { stream_.set_trace_row(row_); }
  WithoutSpans(const WithoutSpans&) = delete;
  WithoutSpans& operator=(const WithoutSpans&) = delete;

 private:
  Stream& stream_;
  TraceRow* const row_;
};

}  // namespace

std::unique_ptr<Graph> capture_graph(Stream& stream, const std::function<void()>& work) {
  const WithoutSpans without_spans(stream);
  const cudaStream_t from = raw(stream);
  // Of this thread alone: other ranks may be threads of this process, which allocate, and ask for events.
  check_cuda(cudaStreamBeginCapture(from, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  Handle<cudaGraph_t, cudaGraphDestroy> graph;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(from, graph.out());
    cudaGetLastError();  // or the next launch would report it
    throw;
  }
  check_cuda(cudaStreamEndCapture(from, graph.out()), "cudaStreamEndCapture");
  return std::make_unique<CudaGraph>(graph);
}

}  // namespace trivet
