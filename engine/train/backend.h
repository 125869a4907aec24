// Backend: a rank's Device, its Ops, and the Communicator for the device's memory. The only place that knows which
// backends exist.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/base/device.h"
#include "kernels/graph_ops.h"
#include "parallel/comm/comm.h"

namespace trivet {

struct Config;

struct Backend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Communicator> host;  // underlies `exchange`
  // Connects the world's ranks for tensors on `device`; null: tensors are in host memory, which the world transfers.
  std::unique_ptr<Communicator> exchange;
  std::string exchange_name{};      // human-readable, e.g. "NCCL"
  bool exchange_on_device = false;  // its calls run on the device's streams: NCCL
  std::optional<CpuIsa> cpu_isa{};  // of `ops`, on a CPU
};

// Upper bounds on the resources, other than its own memory, that a rank uses on a GPU that ranks may share.
struct GpuShare {
  int streams;
  // For NCCL: communicators, about kNcclGroupBytes each, and the multiprocessors that most_ctas() allots to those that
  // can communicate concurrently.
  int groups, multiprocessors;
};
constexpr int64_t kNcclGroupBytes = int64_t{256} << 20;
GpuShare gpu_share_of(const Config& config, int ranks);
// A GPU has 32 hardware queues for a process's streams. Streams that share a queue wait for each other, which can make
// ranks wait in a ring. Some queues are left for the libraries' streams.
constexpr int kMostStreams = 28;

// make_backend, or a test's replacement. threads: per rank, on a CPU.
using MakeBackend = std::function<Backend(const Config& config, Communicator& world, int threads)>;

// Chooses a backend by device.kind, device.cpu_isa and comm.backend. `world`: the ranks in host memory; must outlive
// the backend. With GPUs, a rank uses the GPU of its local rank. Collective. Throws ConfigError on every rank if a rank
// has no GPU, shares one under NCCL, or has a CPU that lacks the instructions.
Backend make_backend(const Config& config, Communicator& world, int threads);

// The backend's operations as graphs, or null, as device.cuda_graph_impl specifies. The backend must outlive them.
// Throws ConfigError.
std::unique_ptr<GraphOps> make_graphs(const Config& config, const Backend& backend);

// True if ranks compute on GPUs. Throws ConfigError if they cannot, or a CPU lacks device.cpu_isa, before anything
// is allocated or written. Collective.
bool computes_on_gpus(const Config& config, Communicator& world);

// Compute threads of a rank on a CPU: device.threads_per_rank, or the usable cores of this host divided by its ranks.
int threads_of_rank(const Config& config, const Communicator& world);

}  // namespace trivet
