// The emulated CUDA runtime: the functions of <cuda_runtime_api.h> that Trivet calls, on a machine without a GPU.
//
//   * A stream is a thread that does one piece of work after the other; streams run at the same time, as on a GPU.
//     Where they are many, some share a thread, as they share a channel of the hardware (driver.h).
//   * Device memory is host memory, full of NaN when it is new. Copies check which side each address is on. A copy of
//     host memory that is not pinned is through when the call returns, another one some time later.
//   * cudaFree waits for all streams of its device, as the real one does.
//   * Host functions may not call CUDA. While a thread captures, what is not allowed then is refused.
//   * TRIVET_EMULATED_GPUS says how many GPUs there are; 8 without it. To ranks that are processes they have one UUID.
//
// Where the real runtime reports an error, so does this one; what would be undefined behaviour on a GPU ends the
// process with a message (grid.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <functional>

namespace trivet::emulation {

// Queues a kernel; `thread` is what one thread of it does. Refuses grids and shared memory that the GPU does not have.
cudaError_t launch_kernel(const cudaLaunchConfig_t& how, const void* kernel, const std::function<void()>& thread);

bool on_a_gpu(const void* data, size_t bytes);  // in memory that the runtime has made there

// What the driver has seen, and how strict it is (driver.h).
struct Driver {
  Driver();

  std::atomic<bool> strict, lazy;  // lazy: kernels are loaded at their first use
  std::atomic<int64_t> patience_ms = 10'000;
  // While it counts: the time of the last grid on the multiprocessors that NCCL left to it, in steps of threads. A tile
  // that a block takes by take_tile() is a piece of work for the next free multiprocessor; else a block is.
  std::atomic<bool> counts = false;
  std::atomic<int64_t> grid_time = 0;
  std::atomic<int64_t> most_queued = 0;  // entries of a channel that were not through at once; a graph has its nodes
  std::atomic<int64_t> full = 0;         // launches for which a channel had no room
  std::atomic<int64_t> polls = 0;        // queries of events that had not happened
  std::atomic<size_t> misalignment = 0;  // dynamic shared memory begins so many bytes after a multiple of 1024
  // For kernels on tensors of billions of elements: only so many of a grid's last blocks run (0: all of them), and then
  // the library's GEMMs compute nothing.
  std::atomic<uint64_t> last_blocks = 0;
  std::atomic<int> multiprocessors = 4;     // of each GPU, as devices tell of it
  std::atomic<int64_t> clock_ahead_ns = 0;  // of the GPUs' clock, before the host's
  std::atomic<int> greatest_ctas = 0;       // of NCCL's communicators so far
  // The library's GEMMs of FP8 so far: with fast accumulation, and the others.
  std::atomic<int64_t> fast_products = 0, fp8_products = 0;
};
Driver& driver();

}  // namespace trivet::emulation
