// Contention: how much a collective slows the GEMMs that run during it on the same cores, memory or GPU: the price of
// overlap, as a curve over how much of the time the link is in use.
//
// In each round of an asked use a rank times a layer's largest GEMM alone, and right after that while another of its
// threads makes reduce-scatters over the data-parallel link (emulated links included), with pauses that
// bring the use about. A round's slowdown is the ratio of the two medians, geometric mean over the ranks; the curve has
// its geometric mean over rounds with a 95 % interval by Student's t. Kernels on a GPU's own streams are timed the same
// way, from the host.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "engine/config/config.h"
#include "parallel/comm/comm.h"

namespace trivet {

struct ContentionOptions {
  std::vector<double> uses = {0.25, 0.5, 0.75, 1};  // above 0, at most 1: the share of the time in a collective
  int64_t rounds = 5;
  int64_t bytes = 4 << 20;  // of the whole buffer of a reduce-scatter
  double seconds = 0.2;     // that GEMMs are timed for, alone and during; at least four collectives
};

// {device, exchange, ranks, dtype, gemm: {m, n, k, seconds (alone)}, collective: {call, bytes}, rounds, curve}; curve
// has for each of options.uses {link_use (reached), bus_gbps (10^9 bits a second that a rank sends), slowdown (of a
// GEMM), slowdown_low, slowdown_high}. Collective over `world`, and the same on all ranks. `config` is resolved. Throws
// ConfigError for one rank.
nlohmann::ordered_json measure_contention(const Config& config, Communicator& world, const ContentionOptions& options);

}  // namespace trivet
