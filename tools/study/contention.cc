#include "tools/study/contention.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/host.h"
#include "engine/train/backend.h"
#include "engine/train/rank_state.h"
#include "kernels/base/arena.h"
#include "kernels/ops.h"
#include "parallel/comm/host_world.h"
#include "parallel/comm/world.h"
#include "tools/study/summary.h"

namespace trivet {
namespace {

// The GEMM and collective of one rank.
class ContentionRank {
 public:
  ContentionRank(const Config& config, Communicator& world, int64_t bytes)
      : backend(make_backend(config, world, threads_of_rank(config, world))),
        ranks_(with_links(backend.exchange ? *backend.exchange : world, links_of(config.comm))),
        group_(ranks_->twin("contention", comm_of("data"))),
        arena_(*backend.device, "contention"),
        compute_(backend.device->create_compute_stream()),
        side_(backend.device->create_side_stream(StreamPriority::high)),
        guard_(*ranks_) {
    const DType dtype = config.precision.dtype;
    const int64_t m = config.batch.micro_batch_size * config.model.seq_length / config.parallel.context_parallel_size,
                  k = config.model.hidden_size;
    const int64_t n = config.model.ffn_hidden_size.value() / config.parallel.tensor_model_parallel_size;
    a = arena_.allocate(dtype, {m, k}), b_ = arena_.allocate(dtype, {n, k}), c = arena_.allocate(dtype, {m, n});
    const int64_t shard = std::max<int64_t>(bytes / 4 / world.size(), 1);
    full = arena_.allocate(DType::f32, {shard * world.size()}), shard_ = arena_.allocate(DType::f32, {shard});
    for (const Tensor& tensor : {a, b_, full}) backend.ops->run(op::Fill{tensor, 0.5f}, *compute_);
    compute_->synchronize();
  }

  double time_collective() {
    const double begin = now_seconds();
    group_->reduce_scatter(full, shard_, Reduce::sum, *side_);
    side_->synchronize();
    return now_seconds() - begin;
  }
  // Median time of a GEMM, repeated until over() returns true.
  double time_gemms(const std::function<bool()>& over) {
    std::vector<double> times;
    do {
      const double begin = now_seconds();
      backend.ops->run(op::Matmul{.a = a, .b = b_, .c = c, .transpose_b = true}, *compute_);
      compute_->synchronize();
      times.push_back(now_seconds() - begin);
    } while (!over());
    return median(std::move(times));
  }
  double time_gemms_alone(double seconds) {
    return time_gemms([end = now_seconds() + seconds] { return now_seconds() >= end; });
  }
  // The same during `count` collectives, each followed by a pause. busy: seconds in collectives; seconds: in total.
  double time_gemms_beside(int64_t count, double pause, double& busy, double& seconds) {
    std::future<void> link = std::async(std::launch::async, [&] {
      const double begin = now_seconds();
      for (int64_t i = 0; i < count; ++i) {
        busy += time_collective();
        std::this_thread::sleep_for(std::chrono::duration<double>(pause));
      }
      seconds = now_seconds() - begin;
    });
    const double gemm = time_gemms([&] { return link.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
    link.get();
    return gemm;
  }

  const Backend backend;
  Tensor a, c, full;

 private:
  std::unique_ptr<Communicator> ranks_, group_;
  Arena arena_;
  std::unique_ptr<Stream> compute_, side_;
  FailureGuard guard_;
  Tensor b_, shard_;
};

double mean_of(const std::vector<double>& values) { return estimate_mean(values).mean; }

// Measures a point of the curve. call: seconds per collective. Appends the times of the GEMM alone to alone_times.
nlohmann::ordered_json measure_use(ContentionRank& rank, HostWorld& host, double use, double call,
                                   const ContentionOptions& options, std::vector<double>& alone_times) {
  const double seconds = std::max(options.seconds, 4 * call), pause = call * (1 / use - 1);
  const auto count = std::max<int64_t>(std::llround(seconds / (call + pause)), 1);
  const double sent = static_cast<double>(count * rank.full.bytes()) * (host.size() - 1) / host.size();
  std::vector<double> log_slowdowns, uses, gbps;
  for (int64_t round = 0; round < options.rounds; ++round) {
    host.barrier();
    const double alone = rank.time_gemms_alone(seconds);
    host.barrier();
    double busy_seconds = 0, link_seconds = 0;
    const double beside = rank.time_gemms_beside(count, pause, busy_seconds, link_seconds);
    log_slowdowns.push_back(mean_of(host.gather(std::log(beside / alone))));
    uses.push_back(mean_of(host.gather(busy_seconds / link_seconds)));
    gbps.push_back(mean_of(host.gather(8e-9 * sent / link_seconds)));
    alone_times.push_back(mean_of(host.gather(alone)));
  }
  const Estimate slowdown = ratio_of(estimate_mean(log_slowdowns));
  return {{"link_use", mean_of(uses)},
          {"bus_gbps", mean_of(gbps)},
          {"slowdown", slowdown.value},
          {"slowdown_low", slowdown.low},
          {"slowdown_high", slowdown.high}};
}

}  // namespace

nlohmann::ordered_json measure_contention(const Config& config, Communicator& world, const ContentionOptions& options) {
  if (world.size() < 2) throw ConfigError("contention is between a collective and GEMMs: expected at least 2 ranks");
  ContentionRank rank(config, world, options.bytes);
  HostWorld host(world);
  rank.time_gemms_alone(options.seconds);  // the first GEMMs create kernels and touch pages
  std::vector<double> calls, alone_times;
  for (int i = 0; i < 5; ++i) calls.push_back(rank.time_collective());
  const double call = std::ranges::max(host.gather(median(calls)));  // equal on all ranks, and so the counts
  nlohmann::ordered_json curve;
  for (const double use : options.uses) curve.push_back(measure_use(rank, host, use, call, options, alone_times));
  const int64_t m = rank.c.shape[0], n = rank.c.shape[1], k = rank.a.shape[1];
  return {{"device", rank.backend.device->name()},
          {"exchange", rank.backend.exchange_name},
          {"ranks", world.size()},
          {"dtype", word_of(config.precision.dtype)},
          {"gemm", {{"m", m}, {"n", n}, {"k", k}, {"seconds", median(alone_times)}}},
          {"collective", {{"call", "reduce_scatter"}, {"bytes", rank.full.bytes()}}},
          {"rounds", options.rounds},
          {"curve", curve}};
}

}  // namespace trivet
