// A device that is to a program what a GPU is, on any machine: what would go wrong there goes wrong here, every time.
//
//   * Its memory cannot be touched by the host: a tensor's address lies in pages without any access (SIGSEGV), and the
//     numbers behind it at an address that only its ops and copies know. An address that is not inside a block of the
//     device, host memory or memory given back, throws Error where it is handed to an op or a copy.
//   * New memory, of the device and of HostBuffers, is full of NaN and large integers.
//   * All its streams run beside the host. Lazy streams do nothing until the host waits for what they hold (for the
//     stream, for an event, or asks whether an event is done), and then nothing beyond it, other streams included as
//     far as they are waited for. So a host that reads a copy too early finds what was there before, and one that
//     changes a copy's source too early has changed it: without luck, and without a sleep. Such a stream starts nothing
//     by itself: a program that waits for the effect of a host function by other means waits for ever.
//   * A stream or an event of another device throws Error.
//   * A graph repeats its operations with the arguments that they had when it was captured. Anything but operations on
//     the stream that is captured throws Error meanwhile, memory that is taken too.
//
// What it does not imitate: a copy's target is not overwritten before the copy runs, because host memory may be used
// again in stream order (the staged communicator does so), and giving memory back does not wait for streams as cudaFree
// does. With AddressSanitizer, work that then still uses it is reported, and so are the ends of blocks.
#pragma once

#include <functional>
#include <memory>

#include "kernels/ops.h"

namespace trivet::test {

// A scheduler that runs each stream as late or as early as its waits allow. A stream that is held back and that nobody
// waits for is handed on when no thread of the process runs any more.
struct Hostility {
  // Whether the n-th stream of the device is lazy; else it runs at once.
  std::function<bool(size_t n, bool computes)> holds_back;
  // Whether it rests before each item, so that others get ahead of it. Null: none does.
  std::function<bool(size_t n, bool computes)> rests{};
  // Whether a wait, of the host or of a stream, is left out; `caller`: the return address. Null: none is.
  std::function<bool(void* caller)> skips{};
};

// Of 1 GiB. kind() is DeviceKind::cuda: "not host memory". Not lazy: streams run at once, on threads of their own.
std::unique_ptr<Device> create_split_device(bool lazy = true);
std::unique_ptr<Device> create_hostile_device(const Hostility& hostility);
// The memory behind a tensor of such a device.
Tensor behind_split_device(Device& device, const Tensor& tensor);
// The CPU's operations, with so many threads, on tensors of `device`. REQUIRES: made by create_split_device.
std::unique_ptr<Ops> create_split_ops(Device& device, int threads);

}  // namespace trivet::test
