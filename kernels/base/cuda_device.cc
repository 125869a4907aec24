// A CUDA GPU as a Device: cudaMalloc, cudaStream_t, cudaEvent_t, cudaGraph_t. Host code only.
#include "kernels/base/cuda_device.h"

#include <atomic>
#include <cstdlib>
#include <cuda.h>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "base/built_with.h"
#include "kernels/base/cuda_spans.h"
#include "kernels/base/device.h"

namespace trivet {

void check_cuda(cudaError_t status, const char* call, std::source_location at) {
  if (status != cudaSuccess)
    fail(std::string(call) + ": " + cudaGetErrorName(status) + ", " + cudaGetErrorString(status), at);
}

bool has_happened(cudaEvent_t event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check_cuda(status, "cudaEventQuery");
  return true;
}

namespace {

// CUDA reads both variables when it starts, perhaps in MPI_Init, so they are set before main(), when no other thread
// can read the environment. Each prevents deadlocks between ranks that wait for each other on streams.
// Streams that share a hardware queue wait for each other, whatever their dependencies: use as many queues as possible.
[[maybe_unused]] const int kQueuesAreSet = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
// Loading a kernel at its first use can wait until the GPU is idle, and thus for a receive that depends on what this
// rank has yet to compute: load all kernels when CUDA starts.
[[maybe_unused]] const int kLoadingIsSet = setenv("CUDA_MODULE_LOADING", "EAGER", 0);

// A stream's queue has room for about 1,024 entries: kernels, copies, events. A thread that finds it full blocks in the
// driver, perhaps holding a lock needed by the rank for which this stream waits. So a stream holds at most
// kMostQueued + kMarkEvery entries, with an op counted as two kernels.
constexpr int64_t kMostQueued = 512, kMarkEvery = 256, kOpEntries = 2;

// Holds the reason, if any, why a device's streams can no longer be trusted.
class Poison {
 public:
  void set(const std::string& why) noexcept {
    std::lock_guard lock(mutex_);
    if (is_set_) return;
    why_ = why;
    is_set_.store(true, std::memory_order_release);
  }
  void check() const {
    if (!is_set_.load(std::memory_order_acquire)) return;
    std::lock_guard lock(mutex_);
    throw Error(why_);
  }

 private:
  mutable std::mutex mutex_;
  std::string why_;
  std::atomic<bool> is_set_ = false;
};

class CudaEvent : public Event {
 public:
  CudaEvent(int device, const Poison& poison) : device_(device), poison_(poison) {
    // A waiting host thread sleeps: a spinning thread would take a core from another rank.
    check_cuda(cudaEventCreateWithFlags(event_.out(), cudaEventDisableTiming | cudaEventBlockingSync),
               "cudaEventCreate");
  }
  void synchronize() override {
    // Any thread may call this: a thread without a current device would initialise GPU 0.
    check_cuda(cudaSetDevice(device_), "cudaSetDevice");
    check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize");
    poison_.check();
  }
  bool done() override {
    poison_.check();
    return has_happened(event_);
  }
  cudaEvent_t raw() const { return event_; }

 private:
  const int device_;
  const Poison& poison_;
  Handle<cudaEvent_t, cudaEventDestroy> event_;
};

class CudaStream : public Stream {
 public:
  CudaStream(int priority, const Poison& poison) : poison_(poison) {
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority), "cudaStreamCreate");
    spans_.emplace(stream_);
  }
  ~CudaStream() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  void record(Event& event) override {
    flush();
    make_room(1);
    check_cuda(cudaEventRecord(static_cast<CudaEvent&>(event).raw(), stream_), "cudaEventRecord");
  }
  void wait(Event& event) override {
    flush();
    make_room(1);
    check_cuda(cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).raw(), 0), "cudaStreamWaitEvent");
  }
  void synchronize() override {
    flush();
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    poison_.check();
    spans_->report_complete();
    rethrow_error();
  }
  void begin_phase(const SpanInfo& info) override {
    flush();
    if (!measured()) return;
    make_room(1);
    spans_->begin_phase(labelled(info), *trace_row());
  }
  void end_phase() override {
    flush();
    if (!measured()) return;
    make_room(1);
    spans_->end_phase();
  }
  bool measured() const { return trace_row() && trace_row()->measures(); }
  cudaStream_t raw() {  // for callers that queue something
    flush();
    make_room(kOpEntries);
    return stream_;
  }
  CudaSpans& spans() {  // for the same callers
    make_room(1);
    return *spans_;
  }
  // Waits, without blocking in the driver, until there is room for `entries` more. Never waits during a
  // capture, whose entries are queued only when the graph is launched.
  void make_room(int64_t entries) {
    if (captures_) return;
    if (queued_ - marked_ >= kMarkEvery) {
      Mark& mark = marks_.emplace_back(marked_ = queued_);
      check_cuda(cudaEventCreateWithFlags(mark.event.out(), cudaEventDisableTiming), "cudaEventCreate");
      check_cuda(cudaEventRecord(mark.event, stream_), "cudaEventRecord");
    }
    queued_ += entries;
    for (; !marks_.empty() && marks_.front().after + kMostQueued <= queued_; marks_.pop_front())
      while (!has_happened(marks_.front().event)) {
        poison_.check();
        std::this_thread::yield();
      }
  }
  void set_captures(bool captures) { captures_ = captures; }

 protected:
  void enqueue(std::function<void()> work) override {
    flush();
    rethrow_error();
    make_room(1);
    auto* item = new Item{this, std::move(work)};
    const cudaError_t status = cudaLaunchHostFunc(stream_, &CudaStream::run_item, item);
    if (status != cudaSuccess) delete item;
    check_cuda(status, "cudaLaunchHostFunc");
  }

 private:
  struct Item {
    CudaStream* stream;
    std::function<void()> work;
  };
  struct Mark {
    explicit Mark(int64_t after) : after(after) {}
    int64_t after;  // value of queued_ at the mark
    Handle<cudaEvent_t, cudaEventDestroy> event;
  };
  void rethrow_error() {
    std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }
  static void run_item(void* data) {
    const std::unique_ptr<Item> item(static_cast<Item*>(data));
    try {
      item->stream->rethrow_error();
      item->work();
    } catch (...) {  // an exception must not escape into CUDA's thread: synchronize() rethrows it
      std::lock_guard lock(item->stream->mutex_);
      item->stream->error_ = std::current_exception();
    }
  }

  const Poison& poison_;
  cudaStream_t stream_ = nullptr;
  std::optional<CudaSpans> spans_;
  bool captures_ = false;
  int64_t queued_ = 0, marked_ = 0;  // entries in total; those before the last mark
  std::deque<Mark> marks_;           // not known to have completed
  std::mutex mutex_;
  std::exception_ptr error_;
};

// The stream waits in the GPU's front end for a value in pinned memory, and occupies no thread or multiprocessor.
class CudaGate : public Gate {
 public:
  CudaGate() {
    void* memory = nullptr;
    check_cuda(cudaHostAlloc(&memory, sizeof *opened_, cudaHostAllocMapped), "cudaHostAlloc");
    opened_ = new (memory) uint32_t(0);
  }
  ~CudaGate() override { cudaFreeHost(opened_); }
  void wait(Stream& stream) override {
    const auto address = reinterpret_cast<CUdeviceptr>(opened_);
    const CUresult status = wait_value_(raw(stream), address, ++waits_, CU_STREAM_WAIT_VALUE_GEQ);
    if (status != CUDA_SUCCESS) fail("cuStreamWaitValue32: CUDA driver error " + std::to_string(status));
  }
  void open() override { std::atomic_ref(*opened_).fetch_add(1, std::memory_order_release); }

 private:
  uint32_t* opened_ = nullptr;  // pinned
  uint32_t waits_ = 0;          // the comparison is cyclic
  decltype(cuStreamWaitValue32)* const wait_value_ =
      driver_function<decltype(cuStreamWaitValue32)>("cuStreamWaitValue32");
};

class CudaGraph : public Graph {
 public:
  explicit CudaGraph(cudaGraph_t graph) {
    check_cuda(cudaGraphInstantiate(executable_.out(), graph, 0), "cudaGraphInstantiate");
    check_cuda(cudaGraphGetNodes(graph, nullptr, &nodes_), "cudaGraphGetNodes");
  }
  void launch(Stream& stream) override {
    static_cast<CudaStream&>(stream).make_room(static_cast<int64_t>(nodes_));
    enqueue(stream, {"graph"},
            [this](cudaStream_t raw) { check_cuda(cudaGraphLaunch(executable_, raw), "cudaGraphLaunch"); });
  }

 private:
  Handle<cudaGraphExec_t, cudaGraphExecDestroy> executable_;
  size_t nodes_ = 0;
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {
    check_cuda(cudaSetDevice(index), "cudaSetDevice");
    check_cuda(cudaGetDeviceProperties(&properties_, index), "cudaGetDeviceProperties");
    check_cuda(cudaDeviceGetStreamPriorityRange(&lowest_, &highest_), "cudaDeviceGetStreamPriorityRange");
  }
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return properties_.name; }
  int64_t memory_bytes() const override { return static_cast<int64_t>(properties_.totalGlobalMem); }
  std::string id() const override {
    std::string text = "GPU-";
    for (const char byte : properties_.uuid.bytes) {
      const auto value = static_cast<unsigned char>(byte);
      text += "0123456789abcdef"[value / 16];
      text += "0123456789abcdef"[value % 16];
    }
    return text;
  }

  void* allocate(int64_t bytes) override {
    use();
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(bytes));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // it is reported below, not by the next launch
      size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      fail("cannot allocate " + std::to_string(bytes) + " bytes on " + name() + ": " + std::to_string(free) + " of " +
           std::to_string(total) + " are free");
    }
    check_cuda(status, "cudaMalloc");
    return data;
  }
  void deallocate(void* data, int64_t) noexcept override { cudaFree(data); }

  void* allocate_host(int64_t bytes) override {
    use();
    void* data = nullptr;
    check_cuda(cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocDefault), "cudaHostAlloc");
    return data;
  }
  void deallocate_host(void* data, int64_t) noexcept override { cudaFreeHost(data); }

  std::unique_ptr<Stream> create_compute_stream() override {
    use();
    return std::make_unique<CudaStream>(lowest_, poison_);
  }
  std::unique_ptr<Stream> create_side_stream(StreamPriority priority) override {
    use();
    return std::make_unique<CudaStream>(priority == StreamPriority::high ? highest_ : lowest_, poison_);
  }
  std::unique_ptr<Event> create_event() override {
    use();
    return std::make_unique<CudaEvent>(index_, poison_);
  }
  std::unique_ptr<Gate> create_gate() override {
    use();
    return std::make_unique<CudaGate>();
  }

  bool captures() const override { return true; }
  std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& work) override {
    use();
    // Events in a graph have no timestamps: without a trace row, operations record none.
    const auto restore = [row = stream.trace_row()](CudaStream* s) { s->set_trace_row(row), s->set_captures(false); };
    const std::unique_ptr<CudaStream, decltype(restore)> captured(&static_cast<CudaStream&>(stream), restore);
    captured->set_trace_row(nullptr);
    const cudaStream_t from = captured->raw();
    captured->set_captures(true);
    // Capture this thread only: other ranks may be threads of this process that allocate and query events.
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
  void poison(const std::string& why) noexcept override { poison_.set(why); }

  void copy_to_device(const void* host, Tensor to, Stream& stream) override {
    copy(to.data, host, to.bytes(), cudaMemcpyHostToDevice, stream);
  }
  void copy_to_host(Tensor from, void* host, Stream& stream) override {
    copy(host, from.data, from.bytes(), cudaMemcpyDeviceToHost, stream);
  }

 private:
  static void copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, Stream& stream) {
    if (bytes > 0)
      check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, static_cast<CudaStream&>(stream).raw()),
                 "cudaMemcpyAsync");
  }
  void use() const { check_cuda(cudaSetDevice(index_), "cudaSetDevice"); }  // whichever thread calls

  const int index_;
  Poison poison_;
  cudaDeviceProp properties_{};
  int lowest_ = 0, highest_ = 0;
};

}  // namespace

cudaStream_t raw(Stream& stream) { return static_cast<CudaStream&>(stream).raw(); }
void begin_span(Stream& stream, const SpanInfo& info) {
  auto& cuda = static_cast<CudaStream&>(stream);
  cuda.flush();
  if (cuda.measured()) cuda.spans().begin(cuda.labelled(info), *cuda.trace_row());
}
void end_span(Stream& stream) {
  auto& cuda = static_cast<CudaStream&>(stream);
  if (cuda.measured()) cuda.spans().end();
}
cudaEvent_t raw(Event& event) { return static_cast<CudaEvent&>(event).raw(); }

std::unique_ptr<Device> create_cuda_device(int index) {
  if (const int count = cuda_device_count(); index < 0 || index >= count)
    throw ConfigError(
        "this host has " + std::to_string(count) + " usable GPUs, and this rank would use GPU " + std::to_string(index),
        Lack::gpu);
  return std::make_unique<CudaDevice>(index);
}

bool built_with_cuda() { return true; }

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // no driver: clear the sticky error
    return 0;
  }
  return count;
}

}  // namespace trivet
