// Device: where memory lives and streams run. Each rank owns one Device, which must outlive its arenas and streams.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace trivet {

enum class DeviceKind { cpu, cuda };
enum class StreamPriority { normal, high };

// A point at which a stream waits for a host thread. Slow host work (a message from another rank) thus blocks a stream,
// but no thread that serves streams. Opened once for each wait, in order.
class Gate {
 public:
  virtual ~Gate() = default;
  virtual void wait(Stream& stream) = 0;  // work queued from now on starts after one more open()
  virtual void open() = 0;                // any thread
};

// Work captured with its arguments and launched as a whole: a CUDA graph.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(Stream& stream) = 0;  // under one span, "graph"
};

// A source of memory blocks.
class Memory {
 public:
  virtual ~Memory() = default;
  // Aligned to at least 256 bytes; contents undefined. Throws an Error that names the size if memory runs out.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void deallocate(void* data, int64_t bytes) noexcept = 0;
};

class Device : public Memory {
 public:
  virtual DeviceKind kind() const = 0;
  virtual std::string name() const = 0;              // e.g. "NVIDIA H200", "Intel(R) Xeon(R) Processor"
  virtual int64_t memory_bytes() const = 0;          // total memory of the device
  virtual std::string id() const { return name(); }  // unique on this host: a GPU's UUID

  // The stream that a rank computes on: inline on a CPU.
  virtual std::unique_ptr<Stream> create_compute_stream() = 0;
  // A stream that runs concurrently with the compute stream: a worker thread on a CPU.
  virtual std::unique_ptr<Stream> create_side_stream(StreamPriority priority) = 0;
  virtual std::unique_ptr<Event> create_event() = 0;

  // Copies to and from this device's memory, in stream order. The host memory must stay valid until the copy is done.
  virtual void copy_to_device(const void* host, Tensor to, Stream& stream) = 0;
  virtual void copy_to_host(Tensor from, void* host, Stream& stream) = 0;

  // Host memory for such copies: pinned for a GPU, so that they overlap with other work. Ordinary memory by default.
  virtual void* allocate_host(int64_t bytes);
  virtual void deallocate_host(void* data, int64_t bytes) noexcept;

  // Null if the device has no real streams (a planning device).
  virtual std::unique_ptr<Gate> create_gate() { return nullptr; }

  // Captures what work() queues on `stream`, without running it. Throws Error if work() queues elsewhere, records or
  // waits for an event, or allocates. REQUIRES: captures().
  virtual bool captures() const { return false; }
  virtual std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& work);

  // Marks results of this device's streams as invalid from now on, because work on them was aborted: waiting for them
  // or querying their events throws Error with `why`. Any thread; the first reason counts. No-op by default: on a CPU
  // stream the work itself throws.
  virtual void poison(const std::string&) noexcept {}
};

// Owns host memory for copies (Device::allocate_host). The device must outlive it.
class HostBuffer {
 public:
  HostBuffer(Device& device, int64_t bytes) : device_(device), bytes_(bytes), data_(device.allocate_host(bytes)) {}
  ~HostBuffer() { device_.deallocate_host(data_, bytes_); }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  Device& device_;
  int64_t bytes_;
  void* data_;
};

std::unique_ptr<Device> create_cpu_device();
// A Device on which nothing happens: its addresses are distinct but not backed by memory, its streams drop what is
// queued, and its events are complete. Anything built on it reports the memory that it would need.
std::unique_ptr<Device> create_planning_device();
// GPU `index` of this host. Throws ConfigError if the build has no CUDA (no_cuda.cc) or the host has no such GPU.
std::unique_ptr<Device> create_cuda_device(int index);
// GPUs that this build can use on this host; 0 without CUDA or without a driver.
int cuda_device_count();

}  // namespace trivet
