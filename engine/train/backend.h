// Backend: what a rank computes on and how its ranks move that memory: the one place that knows which back ends there
// are. Everything above it sees a Device, its Ops and a Communicator.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/config/config.h"
#include "kernels/base/device.h"
#include "kernels/graph_ops.h"
#include "parallel/comm/comm.h"

namespace trivet {

struct Backend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Communicator> host;  // that `exchange` works over
  // The world's ranks, for tensors of `device`; null: the world itself moves them, as they are host memory.
  std::unique_ptr<Communicator> exchange;
  std::string exchange_name{};      // for people, as "NCCL"
  bool exchange_on_device = false;  // its calls run on the device's streams, and are nobody else's: NCCL
  std::string attention_name{};     // for people: who computes attention, and why; empty on a CPU
};

// What builds a rank's backend: make_backend, or what a test puts in its place. threads: of a rank on a CPU.
using MakeBackend = std::function<Backend(const Config& config, Communicator& world, int threads)>;

// As device.kind and comm.backend say; `world`: the ranks in host memory, which outlives the backend. With GPUs each
// rank takes the one of its number on this host. Collective. Throws ConfigError, on every rank, where a rank has no
// GPU, or shares one though NCCL is to connect them.
Backend make_backend(const Config& config, Communicator& world, int threads);

// The backend's operations as graphs, where device.cuda_graph_impl asks for them; else null. The backend outlives them.
// Throws ConfigError.
std::unique_ptr<GraphOps> make_graphs(const Config& config, const Backend& backend);
// The same for contexts of any length, of which attention_backend says nothing: attention is Trivet's own kernels'.
Backend make_inference_backend(const Config& config, Communicator& world, int threads);

// Whether that would be GPUs. Throws what the configuration and the hosts are refused for, before anything is allocated
// or written. Collective.
bool computes_on_gpus(const Config& config, Communicator& world);

// Threads that a rank computes with on a CPU: as the config says, or else this host's cores, as the process may use
// them, over the ranks of this host.
int threads_of_rank(const Config& config, const Communicator& world);

}  // namespace trivet
