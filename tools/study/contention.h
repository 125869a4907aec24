// Contention: how much a collective slows down GEMMs that run concurrently on the same cores, memory or GPU. This is
// the cost of overlap, as a curve over the fraction of time that the link is in use.
//
// In each round, for each requested link use, a rank times a layer's largest GEMM alone, and then again while another
// of its threads runs reduce-scatters over the data-parallel link (or its emulation), with pauses chosen to produce
// that link use. A round's slowdown is the ratio of the two medians, as a geometric mean over ranks; the curve shows
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
  std::vector<double> uses = {0.25, 0.5, 0.75, 1};  // fractions of time in a collective, each in (0, 1]
  int64_t rounds = 5;
  int64_t bytes = 4 << 20;  // size of a reduce-scatter's full buffer
  double seconds = 0.2;     // to time GEMMs, alone and during collectives; raised to the time of four collectives
};

// Returns {device, exchange, ranks, dtype, gemm: {m, n, k, seconds (alone)}, collective: {call, bytes}, rounds, curve};
// curve has one entry per options.uses: {link_use (measured), bus_gbps (10^9 bits per second sent by a rank), slowdown
// (of a GEMM), slowdown_low, slowdown_high}. Collective over `world`; same result on all ranks. config: resolved.
// Throws ConfigError if there is only one rank.
nlohmann::ordered_json measure_contention(const Config& config, Communicator& world, const ContentionOptions& options);

}  // namespace trivet
