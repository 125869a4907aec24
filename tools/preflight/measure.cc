#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <fmt/ranges.h>
#include <set>

#include "base/content_hash.h"
#include "base/files.h"
#include "base/host.h"
#include "base/statistics.h"
#include "engine/checkpoint/open_checkpoint.h"
#include "engine/checkpoint/store.h"
#include "engine/data/training_data.h"
#include "engine/fault/run_guard.h"
#include "engine/train/backend.h"
#include "engine/train/resume.h"
#include "kernels/base/arena.h"
#include "kernels/gpu_monitor.h"
#include "kernels/ops.h"
#include "parallel/comm/clock_offsets.h"
#include "parallel/comm/world.h"
#include "tools/preflight/preflight.h"

namespace trivet {
namespace {

constexpr int64_t kFileBytes = 16 << 20, kMostReadBytes = 64 << 20;

int64_t wall_ns() { return std::llround(unix_seconds() * 1e9); }

// A round lasts at least `seconds`, long enough to include the pauses of a throttled core.
template <class F>
std::vector<double> rates_of(double amount, double seconds, int rounds, F&& f) {
  f();  // warm-up: creates kernels, touches pages, connects
  std::vector<double> rates;
  for (int i = 0; i < rounds; ++i) {
    const double begin = now_seconds();
    double times = 0, took = 0;
    for (; times == 0 || took < seconds; took = now_seconds() - begin) f(), ++times;
    rates.push_back(amount * times / took);
  }
  return rates;
}

// File names of the loaded shared libraries; they end in the version.
std::string library_names() {
  std::set<std::string> names;
  for_each_line("/proc/self/maps", [&](const std::string& line, int64_t) {
    if (line.find(".so") != std::string::npos) names.insert(line.substr(line.rfind('/') + 1));
  });
  return fmt::to_string(fmt::join(names, " "));
}

class Probe {
 public:
  Probe(const Config& config, Communicator& world)
      : config_(config),
        host_(world),
        backend_(make_backend(config, world, threads_of_rank(config, world))),
        ranks_((backend_.exchange ? *backend_.exchange : world).twin("preflight", comm_of("data"))),
        compute_(backend_.device->create_compute_stream()),
        guard_(*ranks_),
        places_(gather_places(world)) {
    for (const RankPlace& place : places_) result_.hosts.push_back(place.host);
    best_.fill(std::nan("")), typical_ = best_;
  }

  Preflight measure(const Layout& layout) {
    compare(layout);
    use_storage();
    record(kClock, {clock_ahead_ms(host_, boot_number(), wall_ns)});
    compute();
    use_links();
    compute();  // again, because other load on the machine varies
    result_.best = host_.gather(best_), result_.typical = host_.gather(typical_);
    return result_;
  }

 private:
  void record(Metric number, const std::vector<double>& rates) {
    std::vector<double>& all = rounds_[number];
    all.insert(all.end(), rates.begin(), rates.end());
    best_[number] = std::ranges::max(all), typical_[number] = median(all);
  }

  // An exception in f() on any rank counts as a failure on all ranks.
  template <class F>
  bool tried(F&& f) {
    std::string problem;
    int64_t exit_code = 0;
    try {
      f();
    } catch (const std::exception& error) {
      problem = error.what(), exit_code = exit_code_of(error);
    }
    result_.exit_code = std::max(result_.exit_code, static_cast<int>(host_.max(exit_code)));
    if (problem = host_.first_problem(problem); problem.empty()) return true;
    result_.failed.push_back(problem);
    return false;
  }

  void compare(const Layout& layout) {
    const std::string driver = "/proc/driver/nvidia/version";
    std::vector<Shared> shared = {{"program", content_hash(InputFile("/proc/self/exe"))},
                                  {"libraries", library_names()},
                                  {"driver", file_exists(driver) ? read_small_file(driver, 1 << 20) : "none"},
                                  {"device", backend_.device->name()}};
    const size_t without_data = shared.size();
    const bool has_data = tried([&] {
      for (const auto& [name, text] : open_training_data(config_, samples_of_run(config_, layout)).fingerprints)
        shared.push_back({name, text, true});
    });
    if (!has_data) shared.resize(without_data);  // equal on all ranks
    tried([&] { check_same_everywhere(shared, places_, host_.world()); });
  }

  void use_storage() {
    const std::string folder = config_.train.run_dir;
    const auto file_of = [&](int rank) { return fmt::format("{}/preflight-rank-{}.tmp", folder, rank); };
    const bool writes = tried([&] {
      make_folder(folder);
      record(kWrite, rates_of(1e-6 * kFileBytes, 0, 2,
                              [&] { write_file(file_of(host_.rank()), std::string(kFileBytes, ' ')); }));
    });
    if (writes)
      tried([&] {
        if (!file_exists(file_of(0)))
          throw IoError(folder + ": rank 0's file is not visible here, expected a train.run_dir that all hosts share");
      });
    std::remove(file_of(host_.rank()).c_str());
    tried([&] {
      const std::vector<std::string> found = CheckpointStore(checkpoints_folder(folder)).paths();
      if (!found.empty()) read_checkpoint(found.front());
    });
  }

  // Verifies roughly the first kMostReadBytes of files against their hashes. Ranks start with different files.
  void read_checkpoint(const std::string& path) {
    struct Enough {};
    OpenCheckpoint checkpoint = open_checkpoint(path);
    auto& files = checkpoint.manifest.files;
    std::ranges::rotate(files, files.begin() + host_.rank() % static_cast<int>(files.size()));
    const double begin = now_seconds();
    int64_t read = 0;
    try {
      verify_checkpoint(checkpoint, [&](int64_t bytes) {
        if (read = bytes; read >= kMostReadBytes) throw Enough();
      });
    } catch (Enough) {
    }
    record(kRead, {1e-6 * static_cast<double>(read) / (now_seconds() - begin)});
  }

  void compute() {
    Arena arena(*backend_.device, "preflight");
    const bool gpu = backend_.device->kind() == DeviceKind::cuda;
    const int64_t n = gpu ? 4096 : 768, words = gpu ? 128 << 20 : 8 << 20;
    const DType dtype = config_.precision.dtype;
    const Tensor a = arena.allocate(dtype, {n, n}), b = arena.allocate(dtype, {n, n}),
                 c = arena.allocate(dtype, {n, n});
    const Tensor from = arena.allocate(DType::f32, {words}), to = arena.allocate(DType::f32, {words});
    for (const Tensor& tensor : {a, b, from}) backend_.ops->run(op::Fill{tensor, 0.5f}, *compute_);
    const auto rate = [&](Metric number, double amount, const auto& op) {
      host_.barrier();
      record(number, rates_of(amount, 0.1, 3, [&] {
               backend_.ops->run(op, *compute_);
               compute_->synchronize();
             }));
    };
    rate(kGemm, 2e-12 * static_cast<double>(n * n * n), op::Matmul{.a = a, .b = b, .c = c, .transpose_b = true});
    if (const auto monitor = create_gpu_monitor(*backend_.device)) {
      const GpuReading now = monitor();
      for (const auto& [number, value] : {std::pair(kSmClock, now.sm_clock_mhz), std::pair(kLanes, now.pcie_lanes),
                                          std::pair(kErrors, now.ecc_errors)})
        if (value >= 0) record(number, {static_cast<double>(value)});
    }
    rate(kMemory, 2e-9 * static_cast<double>(from.bytes()), op::Convert{from, to});
  }

  // An XOR tournament: in round r, rank i exchanges with rank i ^ r. If the ranks per host are a power of two, ranks of
  // one host are paired first, then all ranks of two hosts at the same time, so that all get equal shares of the wire.
  void use_links() {
    const auto rank = static_cast<size_t>(host_.rank()), ranks = static_cast<size_t>(host_.size());
    if (ranks == 1) return;
    Arena arena(*backend_.device, "preflight");
    const int64_t bytes = backend_.device->kind() == DeviceKind::cuda ? 64 << 20 : 1 << 20;
    const Tensor out = arena.allocate(DType::f32, {bytes / 4}), in = arena.allocate(DType::f32, {bytes / 4});
    backend_.ops->run(op::Fill{out, 0}, *compute_);
    std::vector<std::vector<double>> rates(ranks);  // [peer]
    std::vector<double> own(ranks);                 // [peer]: the best of these
    for (int again = 0; again < 3; ++again)
      for (size_t round = 1; round < std::bit_ceil(ranks); ++round) {
        host_.barrier();
        const size_t peer = rank ^ round;
        if (peer >= ranks) continue;
        constexpr int kTimes = 4;
        rates[peer].push_back(rates_of(8e-9 * kTimes * static_cast<double>(bytes), 0, 1, [&] {
          for (int i = 0; i < kTimes; ++i)
            ranks_->exchange(out, static_cast<int>(peer), in, static_cast<int>(peer), *compute_);
          compute_->synchronize();
        })[0]);
        own[peer] = std::ranges::max(rates[peer]);
      }
    const std::vector<double> all = host_.gather(own);
    std::vector<int> host;
    for (size_t a = 0; a < ranks; ++a) {
      if (result_.hosts[a] == result_.hosts[rank]) host.push_back(static_cast<int>(a));
      for (size_t b = a + 1; b < ranks; ++b) {
        const Metric kind = result_.hosts[a] == result_.hosts[b] ? kInHost : kNetwork;
        const double rate = std::min(all[a * ranks + b], all[b * ranks + a]);  // the late starter's rate is too high
        result_.links.push_back({a, b, kind, rate});
        if ((a == rank || b == rank) && !(rate <= best_[kind]))
          best_[kind] = rate, typical_[kind] = median(rates[a == rank ? b : a]);
      }
    }
    const auto group = ranks_->split(host, "host", comm_of("data"));
    Communicator& reduced = group->size() > 1 ? *group : *ranks_;
    const double sent = 2 * (1 - 1.0 / reduced.size());  // bytes sent per byte by a ring, as nccl-tests' busbw
    host_.barrier();
    record(kReduce, rates_of(8e-9 * static_cast<double>(bytes) * sent, 0, 5, [&] {
             reduced.all_reduce(out, Reduce::sum, *compute_);
             compute_->synchronize();
           }));
  }

  const Config& config_;
  HostWorld host_;
  const Backend backend_;
  std::unique_ptr<Communicator> ranks_;
  std::unique_ptr<Stream> compute_;
  FailureGuard guard_;
  const std::vector<RankPlace> places_;
  Preflight result_;
  std::array<std::vector<double>, kMetrics> rounds_;
  std::array<double, kMetrics> best_, typical_;
};

}  // namespace

double clock_ahead_ms(HostWorld& ranks, int64_t host_number, const std::function<int64_t()>& now) {
  return -1e-6 * static_cast<double>(ClockOffsets(ranks, host_number, now).offset(now()));
}

Preflight measure_preflight(const Config& config, const Layout& layout, Communicator& world) {
  return Probe(config, world).measure(layout);
}

}  // namespace trivet
