// The table that the communicator benchmarks print: each contender for each collective and size.
//
// A repetition runs the contenders one after the other, each after its own barrier. A time runs from the last
// rank's call to the last rank's return (all ranks are on one host, so their clocks agree). The table shows the medians
// and the bus bandwidth as nccl-tests defines it: the bytes that each rank must receive, divided by the time. For a
// `full` of S bytes on n ranks, these are S (n - 1) / n for a reduce_scatter or an all_gather, and twice that for an
// all_reduce. Within one host, a received byte is copied at least once: the floor is a plain copy with all ranks
// copying at the same time, each byte counted once. Data that stays in a cache may be faster.
#pragma once

#include <algorithm>
#include <cstring>
#include <fmt/core.h>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/base/arena.h"
#include "parallel/comm/comm.h"

namespace trivet {

enum class CommOp { all_reduce, reduce_scatter, all_gather };
constexpr const char* kCommOpNames[] = {"all_reduce", "reduce_scatter", "all_gather"};

// One rank's memory for one size of `full`, from an arena like all tensors (so it uses huge pages).
struct CommBuffers {
  CommBuffers(int64_t bytes, int rank, int ranks, Device& device)
      : rank(rank),
        ranks(ranks),
        numel(bytes / size_of(DType::f32) / ranks),
        arena(device, "collectives"),
        shard(arena.allocate(DType::f32, {numel})),
        full(arena.allocate(DType::f32, {numel * ranks})),
        piece(arena.allocate(DType::f32, {numel})) {}

  static float value(int rank, int64_t i) { return static_cast<float>((i + rank) & 7); }

  void fill() {
    for (int64_t i = 0; i < numel * ranks; ++i) full.as<float>()[i] = value(rank, i);
    for (int64_t i = 0; i < numel; ++i) shard.as<float>()[i] = value(rank, i);
  }
  // Throws Error if `op` left wrong values. The sums are of small integers, so they are equal in any order.
  void verify(CommOp op, const char* who) const {
    const auto sum = [&](int64_t i) {
      float total = 0;
      for (int r = 0; r < ranks; ++r) total += value(r, i);
      return total;
    };
    const float *const part = shard.as<float>(), *const all = full.as<float>();
    bool right = true;
    if (op == CommOp::reduce_scatter)
      for (int64_t i = 0; i < numel; ++i) right &= part[i] == sum(rank * numel + i);
    else
      for (int64_t i = 0; i < numel * ranks; ++i)
        right &= all[i] == (op == CommOp::all_reduce ? sum(i) : value(static_cast<int>(i / numel), i % numel));
    check(right, std::string(who) + ": wrong values in " + kCommOpNames[static_cast<int>(op)]);
  }

  int rank, ranks;
  int64_t numel;  // per shard
  Arena arena;
  Tensor shard, full;
  Tensor piece;  // [numel] for a contender that receives before it adds
};

// A way to run a collective: waits for the other ranks, then times the call.
struct Contender {
  const char* name;
  std::function<Interval(CommOp, CommBuffers&)> run;
};

class CommTable {
 public:
  explicit CommTable(Communicator& world) : world_(world) {}

  // The Communicator itself, on this thread.
  Contender ours() {
    return {"ours", [this](CommOp op, CommBuffers& memory) {
              world_.barrier();
              const int64_t begin = now_ns();
              if (op == CommOp::all_reduce) world_.all_reduce(memory.full, Reduce::sum, *stream_);
              else if (op == CommOp::reduce_scatter)
                world_.reduce_scatter(memory.full, memory.shard, Reduce::sum, *stream_);
              else world_.all_gather(memory.shard, memory.full, *stream_);
              return Interval{begin, now_ns()};
            }};
  }

  // Prints the rows of the collectives in `only`, or of all. The first contender is ours; if there are others, the last
  // column is their best time divided by ours.
  void print(const std::vector<Contender>& contenders, const std::vector<std::string>& only = {}) {
    const double floor = copy_rate();
    if (world_.rank() == 0) {
      const auto cores = static_cast<int>(std::thread::hardware_concurrency());
      fmt::print("{} ranks on {} cores{}; all copying at once: {:.2f} GB/s a rank\n\n{:<14} {:>4}", world_.size(),
                 cores, world_.size() > cores ? ", oversubscribed: they take turns" : "", floor * 1e-9, "fp32", "MiB");
      for (const Contender& who : contenders) fmt::print(" {:>9} {:>6}", std::string(who.name) + " ms", "GB/s");
      fmt::print(" {:>8}{}\n", "of copy", contenders.size() > 1 ? "  ours/best" : "");
    }
    for (const CommOp op : {CommOp::all_reduce, CommOp::reduce_scatter, CommOp::all_gather})
      if (only.empty() || std::find(only.begin(), only.end(), kCommOpNames[static_cast<int>(op)]) != only.end())
        for (const int64_t mib : {1, 4, 16, 64}) row(contenders, op, mib, floor);
  }

 private:
  void row(const std::vector<Contender>& contenders, CommOp op, int64_t mib, double floor) {
    CommBuffers memory(mib << 20, world_.rank(), world_.size(), *device_);
    std::vector<std::vector<double>> seconds(contenders.size());
    const int64_t repetitions = std::clamp<int64_t>(512 / mib, 15, 63);
    for (int64_t i = 0; i <= repetitions; ++i)
      for (size_t who = 0; who < contenders.size(); ++who) {
        memory.fill();
        const Interval mine = contenders[who].run(op, memory);
        const Interval last{latest(mine.begin), latest(mine.end)};
        if (i == 0) memory.verify(op, contenders[who].name);  // the first is a warm-up
        else seconds[who].push_back(static_cast<double>(last.end - last.begin) * 1e-9);
      }
    if (world_.rank() != 0) return;
    const int n = world_.size();
    const double bus_bytes =
        static_cast<double>(memory.full.bytes()) * (op == CommOp::all_reduce ? 2 : 1) * (n - 1) / n;
    fmt::print("{:<14} {:>4}", kCommOpNames[static_cast<int>(op)], mib);
    double others = 1e30, own = 0;
    for (size_t who = 0; who < contenders.size(); ++who) {
      std::sort(seconds[who].begin(), seconds[who].end());
      const double median = seconds[who][seconds[who].size() / 2];
      if (who == 0) own = median;
      else others = std::min(others, median);
      fmt::print(" {:>9.3f} {:>6.2f}", median * 1e3, bus_bytes / median * 1e-9);
    }
    fmt::print(" {:>8.2f}", bus_bytes / own / floor);
    if (contenders.size() > 1) fmt::print(" {:>10.2f}", others / own);
    fmt::print("\n");
    std::fflush(stdout);
  }

  int64_t latest(int64_t mine) {
    world_.all_reduce({&mine, DType::i64, {1}}, Reduce::max, *stream_);
    return mine;
  }

  // Bytes/s of a 64 MiB copy with all ranks copying at the same time: the best of a few, on the slowest rank.
  double copy_rate() {
    constexpr int64_t kBytes = 64 << 20;
    Arena arena(*device_, "copy");
    const Tensor from = arena.allocate(DType::u8, {kBytes}), to = arena.allocate(DType::u8, {kBytes});
    std::memset(from.data, 1, kBytes);
    std::memset(to.data, 2, kBytes);
    int64_t best = INT64_MAX;
    world_.barrier();
    for (int i = 0; i < 7; ++i) {
      const int64_t start = now_ns();
      std::memcpy(to.data, from.data, kBytes);
      best = std::min(best, now_ns() - start);
    }
    return static_cast<double>(kBytes) / static_cast<double>(latest(best)) * 1e9;
  }

  Communicator& world_;
  std::unique_ptr<Device> device_ = create_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->create_compute_stream();
};

}  // namespace trivet
