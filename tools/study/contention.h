// Contention: how much a collective slows down the GEMMs that run during it on the same cores, memory or GPU: the cost
// of overlap, as a curve over the fraction of time that the link is in use.
//
// In each round, for each requested link use, a rank times a layer's largest GEMM alone, and then again while another
// of its threads calls reduce-scatters over the data-parallel link (emulated links included), with pauses chosen to
// produce that use. A round's slowdown is the ratio of the two medians, geometric mean over the ranks; the curve has
// its geometric mean over rounds with a 95 % interval by Student's t. GPU kernels and collectives, on separate streams,
// are timed the same way, from the host.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "engine/config/config.h"
#include "parallel/comm/comm.h"

namespace trivet {

struct ContentionOptions {
  std::vector<double> uses = {0.25, 0.5, 0.75, 1};  // fractions of time in a collective: above 0, at most 1
  int64_t rounds = 5;
  int64_t bytes = 4 << 20;  // size of a reduce-scatter's full buffer
  double seconds = 0.2;     // timing of GEMMs, alone and during collectives; at least the time of four collectives
};

// {device, exchange, ranks, dtype, gemm: {m, n, k, seconds (alone)}, collective: {call, bytes}, rounds, curve}; curve
// has for each of options.uses {link_use (measured), bus_gbps (10^9 bits per second that a rank sends), slowdown (of a
// GEMM), slowdown_low, slowdown_high}. Collective over `world`, with the same result on all ranks. `config` is
// resolved. Throws ConfigError for one rank.
nlohmann::ordered_json measure_contention(const Config& config, Communicator& world, const ContentionOptions& options);

}  // namespace trivet
