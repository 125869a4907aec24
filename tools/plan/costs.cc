#include "tools/plan/costs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace trivet {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

double flops_per_second(const System& system, DType dtype) {
  if (dtype == DType::f32) return 1e12 * system.fp32_tflops;
  if (dtype == DType::bf16) return 1e12 * system.bf16_tflops;
  if (is_fp8(dtype) && system.fp8_tflops > 0) return 1e12 * system.fp8_tflops;
  fail(std::string("a system has no peak rate of ") + name_of(dtype));
}
double memory_bytes_per_second(const System& system) { return 1e9 * system.memory_gb_per_s * system.memory_share; }

// ---- collectives: NCCL's own model, ncclTopoTuneModel in src/graph/tuning.cc

// A protocol's latencies on top of LL's, which are in the system spec, and its share of the bandwidth. LL sends a flag
// with every 4 bytes, LL128 with every 120; Simple synchronizes once per chunk.
struct Protocol {
  double base_us, nvlink_us, network_us, bandwidth;
};
constexpr std::array<Protocol, 3> kProtocols = {{{0, 0, 0, 0.5}, {7.4, 1.3, 1.3, 0.92}, {1.8, 2.8, 11.3, 1}}};
constexpr double kTreeBandwidth = 0.92;  // as a share of a ring's
constexpr int kTreeHops = 2;             // per level: from one child, then from the other
constexpr double kNvlsUs = 23;           // latency of an all-reduce by NVLink SHARP, which uses only Simple

// A message's path: its sequential hops, and the bytes that the slowest link carries.
struct Route {
  int64_t nvlink_hops = 0, network_hops = 0;
  double bytes = 0, bytes_per_second = 0;
};

double seconds_of(const System& system, const Route& route) {
  double best = kInfinity;
  for (const Protocol& p : kProtocols) {
    const double us = system.collective_us + p.base_us +
                      static_cast<double>(route.nvlink_hops) * (system.nvlink_us + p.nvlink_us) +
                      static_cast<double>(route.network_hops) * (system.network_us + p.network_us);
    best = std::min(best, 1e-6 * us + route.bytes / (route.bytes_per_second * p.bandwidth));
  }
  return best;
}

// A group's bandwidths in bytes per second.
struct Wires {
  int64_t ranks, ranks_per_node, nodes;
  double nvlink, ring;  // nvlink: between two ranks of a node; ring: around all ranks

  Wires(const System& system, const GroupPlace& place)
      : ranks(place.ranks),
        ranks_per_node(std::min(place.ranks_per_node, place.ranks)),
        nodes(ceil_div(ranks, ranks_per_node)),
        nvlink(1e9 * system.nvlink_gb_per_s) {
    // A rank uses its own card, or a share of one if the node's groups have more ranks than the node has cards.
    const double users = static_cast<double>(place.groups_per_node * ranks_per_node);
    const double card =
        1e9 * system.network_gb_per_s * system.network_share * std::min(1.0, system.gpus_per_node / users);
    // NCCL builds one ring per card, so a group uses the cards of all its ranks on a node.
    const double leaves = nodes == 1 ? kInfinity : card * static_cast<double>(ranks_per_node);
    ring = ranks_per_node == 1 ? leaves : std::min(nvlink, leaves);
  }
};

// `times` rounds of the ring: each round takes ranks - 1 steps of one shard.
Route ring_route(const Wires& links, double bytes, int times) {
  const auto n = static_cast<double>(links.ranks);
  return {times * (links.ranks - links.nodes), times * (links.nodes - 1), times * bytes * (n - 1) / n, links.ring};
}

double all_reduce_seconds(const System& system, const Wires& links, double bytes) {
  double best = seconds_of(system, ring_route(links, bytes, 2));
  if (links.nodes > 1) {  // a chain in each node, a binary tree over the nodes; up and down again
    const int64_t levels = std::bit_width(static_cast<uint64_t>(links.nodes - 1));
    const Route tree{2 * (links.ranks_per_node - 1), 2 * kTreeHops * levels, 2 * bytes, kTreeBandwidth * links.ring};
    best = std::min(best, seconds_of(system, tree));
  } else if (system.nvls_gb_per_s > 0) {
    best = std::min(best, 1e-6 * kNvlsUs + bytes / (1e9 * system.nvls_gb_per_s));
  }
  return best;
}

}  // namespace

// For tiles, waves and 16-byte alignment, see NVIDIA's Matrix Multiplication Background User's Guide. k0: filling and
// draining a tile's pipeline takes as long as multiplying k0 elements along k.
double gemm_seconds(const System& system, DType dtype, const Gemm& g) {
  check(g.m > 0 && g.n > 0 && g.k > 0 && g.batch > 0, "a GEMM without elements");
  const double peak = flops_per_second(system, dtype) * system.gemm_share;
  const double memory = memory_bytes_per_second(system);
  const auto m = static_cast<double>(g.m), n = static_cast<double>(g.n), k = static_cast<double>(g.k);
  const auto batch = static_cast<double>(g.batch), bytes = static_cast<double>(size_of(dtype));
  // A tile of the output needs (rows + columns) / (rows * columns) loads per multiplication, so a square tile of half
  // the area reaches 0.88 of the largest tile's rate.
  constexpr double kLoads = 59;
  const auto intensity = [](double rows, double columns) { return rows * columns / (rows + columns); };
  const double largest = intensity(system.gemm_tile_m, system.gemm_tile_n);
  const auto rate_of = [&](double rows, double columns) {
    const double i = intensity(rows, columns);
    return i / (i + kLoads) * (largest + kLoads) / largest;
  };

  double compute = kInfinity;
  const int long_side = std::max(system.gemm_tile_m, system.gemm_tile_n), unit = std::max(1, long_side / 4);
  for (int rows = unit; rows <= long_side; rows += unit)
    for (int columns = unit; columns <= long_side; columns += unit) {
      if (rows * columns > system.gemm_tile_m * system.gemm_tile_n) continue;
      const int64_t plane = ceil_div(g.m, rows) * ceil_div(g.n, columns) * g.batch;
      const double rate = peak * rate_of(rows, columns), flops = 2.0 * rows * columns;
      for (const int split : {1, 2, 4, 8}) {
        if (split > 1 && plane >= system.sms) break;  // all compute units are already busy
        const auto units = static_cast<double>(ceil_div(plane * split, system.sms) * system.sms);
        const double sums = split == 1 ? 0 : 8.0 * split * m * n * batch / memory;  // fp32, written and read
        compute = std::min(compute, units * flops * (k / split + system.gemm_k0) / rate + sums);
      }
    }
  const int64_t aligned = 16 / size_of(dtype);
  if (g.m % aligned != 0 || g.n % aligned != 0 || g.k % aligned != 0) compute /= system.gemm_unaligned;
  const double moved = bytes * (m * k + k * n) + static_cast<double>(product_bytes(dtype)) * m * n;
  return std::max(compute, batch * moved / memory) + 1e-6 * system.kernel_us;
}

double attention_seconds(const System& system, DType dtype, double flops, bool backward) {
  const double share = backward ? system.attention_backward : system.attention_forward;
  return flops / (flops_per_second(system, dtype) * share) + 1e-6 * system.kernel_us;
}

double memory_seconds(const System& system, double bytes) {
  return bytes / memory_bytes_per_second(system) + 1e-6 * system.kernel_us;
}

double collective_seconds(const System& system, CommCall call, int64_t bytes, const GroupPlace& place) {
  check(place.ranks > 0 && place.ranks_per_node > 0 && place.groups_per_node > 0, "a group without ranks");
  if (place.ranks == 1) return 0;
  const Wires links(system, place);
  const auto size = static_cast<double>(bytes);
  switch (call) {
    case CommCall::all_reduce: return all_reduce_seconds(system, links, size);
    case CommCall::reduce_scatter:
    case CommCall::all_gather: return seconds_of(system, ring_route(links, size, 1));
    case CommCall::broadcast:  // pipelined along the ring: each link carries all bytes
      return seconds_of(system, {links.ranks - links.nodes, links.nodes - 1, size, links.ring});
    case CommCall::barrier: return all_reduce_seconds(system, links, 0);
    case CommCall::split: return 0;
    case CommCall::transfer: break;
  }
  fail("a transfer is no collective: transfer_seconds()");
}

double ring_share(const System& system, const GroupPlace& place) {
  const Wires links(system, place);
  return std::min(1.0, links.ring / links.nvlink);
}

double transfer_seconds(const System& system, int64_t bytes, bool across) {
  const double rate = across ? system.network_gb_per_s * system.network_share : system.nvlink_gb_per_s;
  return seconds_of(system, {across ? 0 : 1, across ? 1 : 0, static_cast<double>(bytes), 1e9 * rate});
}

}  // namespace trivet
