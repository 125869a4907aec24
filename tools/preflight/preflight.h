// Preflight: before a days-long run starts, finds what would slow it down or kill it. All ranks measure GEMMs, memory,
// links, disk and clocks at the same time, compare program, libraries, devices and data, and read the last checkpoint.
#pragma once

#include <array>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/text.h"
#include "engine/config/validate.h"
#include "parallel/comm/host_world.h"

namespace trivet {

struct MetricKind {
  const char *key, *heading, *unit;
  double least;  // fraction of the median below which a rank is named; 0: ranks are not compared
};
// The last four are not speeds: NVML's readings of a GPU right after a GEMM, and the wall clock against rank 0's.
enum Metric { kGemm, kMemory, kInHost, kNetwork, kReduce, kWrite, kRead, kSmClock, kLanes, kErrors, kClock, kMetrics };
constexpr std::array<MetricKind, kMetrics> kMetricKinds = {
    {{"gemm_tflops", "GEMM", "TFLOP/s", 0.9},
     {"memory_gb_per_s", "memory", "GB/s", 0.9},
     {"in_host_gbit_per_s", "in host", "Gbit/s", 0.9},    // to the best peer on the same host
     {"network_gbit_per_s", "network", "Gbit/s", 0.9},    // to the best peer on another host
     {"all_reduce_gbit_per_s", "reduce", "Gbit/s", 0.9},  // over the host's ranks, or over all if it runs only one
     {"write_mb_per_s", "write", "MB/s", 0.5},            // disks vary
     {"read_mb_per_s", "read", "MB/s", 0.5},
     {"sm_clock_mhz", "SM", "MHz", 0.9},
     {"pcie_lanes", "PCIe", "lanes", 0.9},
     {"ecc_errors", "ECC", "errors", 0},
     {"clock_ahead_ms", "clock", "ms", 0}}};

struct Preflight {
  using Numbers = std::array<double, kMetrics>;  // NaN: not measured
  std::vector<std::string> hosts{};              // [rank]
  // [rank], over several rounds, because other load on the machines varies: a rank's best value is compared with the
  // median of all ranks' typical values.
  std::vector<Numbers> best{}, typical{};
  struct Link {
    size_t a, b;  // ranks, a < b
    Metric kind;  // kInHost or kNetwork
    double rate;  // the best of the rounds
  };
  std::vector<Link> links{};
  std::vector<std::string> failed{};  // failed checks, and differences between ranks
  int exit_code = 0;                  // the highest exit code of these failures
};

// Collective; same result on all ranks. config: resolved. Each rank writes a 16 MiB file in train.run_dir and removes
// it. Throws what make_backend() throws.
Preflight measure_preflight(const Config& config, const Layout& layout, Communicator& world);

// How far this rank's wall clock, now() in ns, is ahead of rank 0's. host_number: the same on the ranks of a host,
// which share a clock. Collective.
double clock_ahead_ms(HostWorld& ranks, int64_t host_number, const std::function<int64_t()>& now);

// The slow parts, one per string. Fewer than three values are not judged, because the slow one of two cannot be
// identified. If all links of a rank are slow, names the rank, else the link.
std::vector<std::string> slow_parts(const Preflight& measured);
TextBlock table_of(const Preflight& measured);
nlohmann::ordered_json json_of(const Preflight& measured);

}  // namespace trivet
