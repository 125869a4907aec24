// A device that behaves like a GPU, on any machine: what would go wrong on a GPU goes wrong here, every time.
//
//   * The host cannot access its memory: a tensor's address lies in pages without access rights (SIGSEGV), and its data
//     at an address that only the device's ops and copies know. Passing an op or a copy an address outside the device's
//     blocks, such as host memory or freed memory, throws Error.
//   * New memory, of the device and of HostBuffers, is full of NaN and large integers.
//   * All its streams run asynchronously. Lazy streams do nothing until the host waits for their work (on the stream or
//     an event, or by querying an event), and then nothing beyond it; the same holds for other streams that this work
//     waits for. So a host that reads a copy's target too early finds the old content, and one that changes a copy's
//     source too early corrupts the copy: every time, without sleeps. A lazy stream starts nothing by itself: a program
//     that waits for the effect of a host function by other means waits forever.
//   * A stream or an event of another device throws Error.
//   * A graph repeats its operations with the arguments that they had at capture. During capture, anything except
//     operations on the captured stream throws Error, including allocation.
//
// What it does not imitate: a copy's target is not overwritten before the copy runs, because host memory may be reused
// in stream order (the staged communicator does so), and freeing memory does not wait for streams as cudaFree does.
// AddressSanitizer reports work that still uses freed memory, and accesses beyond the ends of blocks.
#pragma once

#include <functional>
#include <memory>

#include "kernels/ops.h"

namespace trivet::test {

// A scheduler that runs each stream as late or as early as its waits allow. A stream that is held back, with nothing
// waiting for it, is released when no thread of the process is running.
struct Hostility {
  // True if the device's n-th stream is lazy; otherwise it runs immediately.
  std::function<bool(size_t n, bool computes)> holds_back;
  // True if the stream pauses before each item, so that others get ahead of it. Null: none does.
  std::function<bool(size_t n, bool computes)> rests{};
  // True if a wait by the host or a stream should be skipped; `caller`: its return address. Null: none is.
  std::function<bool(void* caller)> skips{};
};

// Has 1 GiB. kind() is DeviceKind::cuda: "not host memory". Not lazy: streams run immediately, each on its own thread.
std::unique_ptr<Device> create_split_device(bool lazy = true);
std::unique_ptr<Device> create_hostile_device(const Hostility& hostility);
// The memory behind a tensor of such a device.
Tensor behind_split_device(Device& device, const Tensor& tensor);
// CPU ops with `threads` threads on tensors of `device`. REQUIRES: `device` is from create_split_device.
std::unique_ptr<Ops> create_split_ops(Device& device, int threads);

}  // namespace trivet::test
