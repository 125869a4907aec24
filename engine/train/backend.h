// Backend: a rank's Device, its Ops, and the Communicator for the device's memory. The only place that knows which back
// ends there are.
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
  std::unique_ptr<Communicator> host;  // under `exchange`
  // The world's ranks, for tensors of `device`; null: tensors are host memory, which the world itself moves.
  std::unique_ptr<Communicator> exchange;
  std::string exchange_name{};      // for people, as "NCCL"
  bool exchange_on_device = false;  // its calls run on the device's streams: NCCL
  std::optional<CpuIsa> cpu_isa{};  // of `ops`, on a CPU
};

// The most that a rank takes of a GPU that ranks share, apart from its own memory.
struct GpuShare {
  int streams;
  // NCCL's: communicators, each with some kNcclGroupBytes, and the multiprocessors that most_ctas() gives all those
  // that can communicate concurrently.
  int groups, multiprocessors;
};
constexpr int64_t kNcclGroupBytes = int64_t{256} << 20;
GpuShare gpu_share_of(const Config& config, int ranks);
// A GPU has 32 queues for the streams of a process. Streams that share one wait for each other, so that ranks may wait
// in a ring. Some are left for the libraries'.
constexpr int kMostStreams = 28;

// make_backend, or a test's replacement. threads: of a rank on a CPU.
using MakeBackend = std::function<Backend(const Config& config, Communicator& world, int threads)>;

// By device.kind, device.cpu_isa and comm.backend; `world`: the ranks in host memory, which outlives the backend. With
// GPUs, a rank takes the one of its local rank. Collective. Throws ConfigError, on every rank, where a rank has no GPU,
// shares one under NCCL, or has a CPU without the instructions.
Backend make_backend(const Config& config, Communicator& world, int threads);

// The backend's operations as graphs, or null, by device.cuda_graph_impl. The backend outlives them. Throws
// ConfigError.
std::unique_ptr<GraphOps> make_graphs(const Config& config, const Backend& backend);

// True if ranks compute on GPUs. Throws ConfigError if they cannot, or a CPU lacks device.cpu_isa, before anything
// is allocated or written. Collective.
bool computes_on_gpus(const Config& config, Communicator& world);

// Compute threads of a rank on a CPU: device.threads_per_rank, or the usable cores of this host divided by its ranks.
int threads_of_rank(const Config& config, const Communicator& world);

}  // namespace trivet
