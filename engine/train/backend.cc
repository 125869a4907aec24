#include "engine/train/backend.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <set>
#include <thread>
#include <xxhash.h>

#include "base/host.h"
#include "engine/config/problems.h"
#include "engine/config/rules.h"
#include "parallel/comm/host_world.h"
#include "parallel/comm/nccl_comm.h"
#include "parallel/comm/staged_comm.h"
#include "parallel/comm/world.h"

namespace trivet {
namespace {

int64_t hash_of(const std::string& text) { return static_cast<int64_t>(XXH3_64bits(text.data(), text.size())); }

// Identifies this host, even among containers with the same name. As in NCCL, NCCL_HOSTID overrides it (in tests,
// processes that share a GPU use sockets if its values differ).
std::string host_identity() {
  if (const char* id = std::getenv("NCCL_HOSTID")) return id;
  return host_name() + "/" + boot_id();
}

// The transport between ranks' GPU memory. Collective; the result is the same on all ranks. Throws ConfigError.
struct Exchange {
  enum Kind { none, staged, nccl } kind;
  std::string name;   // human-readable
  double part = 1.0;  // fraction of most_ctas()
};
Exchange choose_exchange(const Config& config, const Device& device, HostWorld& host) {
  const std::optional<CommBackend> asked = config.comm.backend;
  const GpuShare share = gpu_share_of(config, host.size());
  const std::vector<int64_t> ids = host.gather(hash_of(host_identity() + device.id()));
  const size_t gpus = std::set<int64_t>(ids.begin(), ids.end()).size();
  const bool shared = gpus < ids.size();
  const std::string sharing = fmt::format("{} ranks share {} GPU{}", ids.size(), gpus, gpus == 1 ? "" : "s");
  if (asked == CommBackend::nccl && shared)
    throw ConfigError(
        fmt::format("comm.backend: found nccl, but {}, and NCCL needs one per rank; expected staged, "
                    "or at most {} rank{}",
                    sharing, gpus, gpus == 1 ? "" : "s"));
  if (host.size() == 1) return {Exchange::none, "none: one rank"};
  std::string staged = "staged through host memory, ";
  // Each process has its own queues.
  const auto beside = launched_world_size() > 0 ? 1 : std::ranges::count(ids, ids[static_cast<size_t>(host.rank())]);
  const bool queue_up = beside * share.streams > kMostStreams;
  if (queue_up)
    staged += fmt::format(
        "which may hang: {} streams on a GPU, expected at most {}: use fewer ranks per GPU or a smaller "
        "overlap.collectives_in_flight; ",
        beside * share.streams, kMostStreams);
  if (shared) return {Exchange::staged, staged + sharing};
  if (asked == CommBackend::staged) return {Exchange::staged, staged + "as asked"};
  if (asked != CommBackend::nccl && !built_with_nccl()) return {Exchange::staged, staged + "without NCCL"};
  if (queue_up)
    throw ConfigError(
        fmt::format("overlap.collectives_in_flight: found {}, which takes {} streams per rank, but a GPU "
                    "has queues for {}; expected {} fewer",
                    config.overlap.collectives_in_flight, share.streams, kMostStreams, share.streams - kMostStreams));
  const auto all = static_cast<int>(std::ranges::min(host.gather(static_cast<int64_t>(gpu_multiprocessors()))));
  const int at_once = std::min(share.multiprocessors, static_cast<int>(kMostOfGpu * all));
  return {Exchange::nccl,
          fmt::format("NCCL: {} communicators, up to {} of {} multiprocessors at a time", share.groups, at_once, all),
          static_cast<double>(at_once) / share.multiprocessors};
}

int default_threads_per_rank(const Communicator& world) {
  const int online = static_cast<int>(std::thread::hardware_concurrency()), cores = usable_cores();
  int ranks = world.size();
  if (launched_world_size() > 0) {
    if (cores < online) return cores;  // the launcher has bound this process to some cores
    for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"})
      if (const char* value = std::getenv(name)) {
        ranks = std::max(1, std::atoi(value));
        break;
      }
  }
  return std::max(1, cores / ranks);
}

// An Error on one rank becomes a ConfigError on all.
template <class F>
void all_succeed(HostWorld& host, F&& f) {
  std::string problem;
  try {
    f();
  } catch (const Error& error) {
    problem = with_hint(error);
  }
  if (problem = host.first_problem(problem); !problem.empty()) throw ConfigError(problem);
}

// device.cpu_isa, or the best ISA of the least capable rank: all must round alike for replicated weights to stay equal.
CpuIsa choose_cpu_isa(const Config& config, HostWorld& host) {
  const std::vector<int64_t> best = host.gather(static_cast<int64_t>(best_cpu_isa()));
  const CpuIsa isa = config.device.cpu_isa.value_or(static_cast<CpuIsa>(std::ranges::min(best)));
  all_succeed(host, [&] {
    if (const std::string problem = cpu_isa_problem(isa); !problem.empty())
      throw ConfigError(fmt::format("device.cpu_isa: found {}, but {}; expected auto, or what all hosts can use",
                                    config.device.cpu_isa ? word_of(isa) : "auto", problem));
  });
  return isa;
}

}  // namespace

GpuShare gpu_share_of(const Config& config, int ranks) {
  const OverlapConfig& o = config.overlap;
  const int t = config.parallel.tensor_model_parallel_size, p = config.parallel.pipeline_model_parallel_size;
  const int c = config.parallel.context_parallel_size, shared = ranks / std::max(1, t * p);  // d c: the gradient group
  const int lanes = o.collectives_in_flight * (o.overlap_grad_reduce + o.overlap_param_gather);
  // A pipeline rank's channels; if chunks are placed in a V, activations and gradients flow both ways.
  const int ends = p == 1 ? 0 : config.parallel.pipeline_schedule.ends_with("-v") ? 8 : 4;
  const int tensor = t > 1, context = c > 1 && o.overlap_cp_comm;
  const int reversed = c > 1 && config.parallel.cp_comm_type == CpCommType::all_gather;  // one more group, same stream
  const int side = tensor + context + (shared > 1 ? lanes : 0);
  // Groups that take turns on the compute stream: the world, the tensor, context, pipeline and data ranks, one
  // replica, and the first and last stage.
  const int mesh = (ranks > 1) + tensor + (c > 1) + (p > 1) + (shared > 1) + (t * p > 1) + (p > 1);
  return {.streams = 2 + tensor + context + lanes + ends,  // 2: the compute and save streams
          .groups = mesh + side + reversed + ends,
          .multiprocessors = (1 + side) * most_ctas(comm_of("data")) + ends * most_ctas(comm_of("pipeline"))};
}

std::unique_ptr<GraphOps> make_graphs(const Config& config, const Backend& backend) {
  if (config.device.cuda_graph_impl == CudaGraphs::none) return nullptr;
  if (!backend.device->captures())
    throw ConfigError(fmt::format("device.cuda_graph_impl: found {}, but {} has no graphs; expected none",
                                  word_of(config.device.cuda_graph_impl), backend.device->name()));
  return std::make_unique<GraphOps>(*backend.ops, *backend.device);
}

int threads_of_rank(const Config& config, const Communicator& world) {
  return config.device.threads_per_rank > 0 ? config.device.threads_per_rank : default_threads_per_rank(world);
}

bool computes_on_gpus(const Config& config, Communicator& world) {
  HostWorld host(world);
  // With device.kind cpu, no driver is queried.
  const int64_t gpus = config.device.kind == DeviceKind::cpu ? 0 : cuda_device_count();
  if (on_gpus(config, host.gather(gpus))) return true;
  choose_cpu_isa(config, host);  // an ISA that a rank cannot use is an error
  return false;
}

Backend make_backend(const Config& config, Communicator& world, int threads) {
  HostWorld host(world);
  Backend backend;
  if (!computes_on_gpus(config, world)) {
    backend.device = create_cpu_device();
    backend.cpu_isa = choose_cpu_isa(config, host);
    backend.ops = create_cpu_ops(threads, backend.cpu_isa, config.precision.fp8_accumulator_bits == 14);
    backend.exchange_name = launched_world_size() > 0 ? "MPI" : "threads";
    return backend;
  }
  const std::vector<int64_t> hosts = host.gather(hash_of(host_identity()));
  const auto before = std::count(hosts.begin(), hosts.begin() + host.rank(), hosts[static_cast<size_t>(host.rank())]);
  all_succeed(host, [&] {
    // A launcher may make only its own GPU visible to each rank.
    backend.device = create_cuda_device(static_cast<int>(before % cuda_device_count()));
    const PrecisionConfig& precision = config.precision;
    backend.ops = create_cuda_ops(
        *backend.device, {.tf32 = config.device.tf32,
                          .gemm_candidates = config.train.deterministic_mode ? 1 : 8,
                          .block_scales = precision.fp8 != Fp8::none && precision.fp8_recipe == Fp8Recipe::blockwise});
  });
  const Exchange exchange = choose_exchange(config, *backend.device, host);
  if (config.comm.nccl_ub && exchange.kind != Exchange::nccl)
    throw ConfigError(
        fmt::format("comm.nccl_ub: true registers buffers with NCCL, but the GPUs do not communicate by NCCL "
                    "({}); expected false",
                    exchange.name));
  backend.exchange_name = exchange.name;
  backend.exchange_on_device = exchange.kind == Exchange::nccl;
  // Separate groups, because the engine uses the world for host memory.
  backend.host = world.twin("device memory", comm_of("data"));
  backend.exchange = exchange.kind == Exchange::nccl ? create_nccl_communicator(*backend.host, *backend.device,
                                                                                config.comm.timeout_s, exchange.part)
                                                     : create_staged_communicator(*backend.host, *backend.device);
  return backend;
}

}  // namespace trivet
