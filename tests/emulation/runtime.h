// The emulated CUDA runtime: the functions of <cuda_runtime_api.h> that Trivet calls, on a machine without a GPU.
//
//   * A stream is a thread that does one piece of work after another; streams run at the same time, as on a GPU.
//     If there are many, some share a thread, as they would a hardware channel (driver.h).
//   * Device memory is host memory, initially full of NaN. Copies check which side each address is on. A copy of
//     pageable host memory has finished when the call returns; other copies finish some time later.
//   * cudaFree waits for all streams of its device, as in the real runtime.
//   * Host functions may not call CUDA. Calls that are not allowed while a thread captures are refused.
//   * TRIVET_EMULATED_GPUS sets the number of GPUs, by default 8. In process ranks, all GPUs share one UUID.
//
// Errors that the real runtime reports are reported here too; undefined behaviour on a GPU ends the process with a
// message (grid.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <functional>

namespace trivet::emulation {

// Queues a kernel; `thread` is one thread's work. Refuses grids and shared memory beyond the GPU's limits.
cudaError_t launch_kernel(const cudaLaunchConfig_t& how, const void* kernel, const std::function<void()>& thread);

bool on_a_gpu(const void* data, size_t bytes);  // in memory that the runtime has allocated on a GPU

// The driver's counters, and its strictness (driver.h).
struct Driver {
  Driver();

  std::atomic<bool> strict, lazy;  // lazy: kernels are loaded at their first use
  std::atomic<int64_t> patience_ms = 10'000;
  // A hostile scheduler: a bit for each channel of a device. A late channel runs a piece of work only once something
  // waits for it, or for later work of the channel.
  std::atomic<uint64_t> late_channels = 0;
  std::atomic<int64_t> held_back = 0;  // pieces that ran because something waited for them
  // If `counts`: the time of the last grid on the multiprocessors that NCCL left to it, in thread steps. Each tile
  // taken with take_tile() is a piece of work for the next free multiprocessor; in other kernels each block is.
  std::atomic<bool> counts = false;
  std::atomic<int64_t> grid_time = 0;
  std::atomic<int64_t> most_queued = 0;  // most unfinished entries of a channel at a time; a graph counts its nodes
  std::atomic<int64_t> full = 0;         // launches that found their channel full
  std::atomic<int64_t> polls = 0;        // queries of incomplete events
  std::atomic<size_t> misalignment = 0;  // offset of dynamic shared memory from a multiple of 1024
  // For kernels on tensors of billions of elements: the number of a grid's last blocks that run (0: all of them); if
  // not 0, the library's GEMMs compute nothing.
  std::atomic<uint64_t> last_blocks = 0;
  std::atomic<int> multiprocessors = 4;     // per GPU, as devices report it
  std::atomic<int64_t> clock_ahead_ns = 0;  // how far the GPUs' clock is ahead of the host's
  std::atomic<int> greatest_ctas = 0;       // over NCCL's communicators so far
  // The library's GEMMs in FP8 so far: with fast accumulation, and the others, of which some have block scales.
  std::atomic<int64_t> fast_products = 0, fp8_products = 0, block_products = 0;
  // What GPUs and cuBLASLt say that they are.
  std::atomic<int> compute_capability = 90;
  std::atomic<size_t> cublas_version = 120900;
};
Driver& driver();

}  // namespace trivet::emulation
