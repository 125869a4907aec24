#include "engine/config/hints.h"

namespace trivet {
namespace {

struct Hint {
  Lack lack;
  const char *before, *after;
};
constexpr Hint kHints[] = {
    {Lack::gpu, "device.kind is cuda, but ", ""},
    {Lack::mpi, "comm.backend: ", ""},
    {Lack::nccl, "comm.backend: ", ", or let ranks share a GPU with comm.backend: staged"},
    {Lack::links, "comm.link_latency_us, comm.link_gbps: ", "; leave the links of comm: out there"},
    {Lack::memory, "",
     "; a smaller batch.micro_batch_size, model.recompute_granularity, a higher "
     "parallel.data_parallel_sharding_strategy or more tensor- or pipeline-parallel ranks would help"},
};

}  // namespace

std::string with_hint(const Error& error) {
  const auto* refusal = dynamic_cast<const ConfigError*>(&error);
  for (const Hint& hint : kHints)
    if (refusal && refusal->lack == hint.lack) return hint.before + std::string(error.what()) + hint.after;
  return error.what();
}

}  // namespace trivet
