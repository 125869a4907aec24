// How much of the kernels' ordering the emulated GPU checks: each fence, wait, arrival and barrier is skipped in turn,
// in a separate process, which must end with a message or compute a different result. A site is a place in the source;
// it counts as noticed if skipping it is noticed in any one of the kernels compiled from it.
#include "tests/emulation/sites.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <new>
#include <regex>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "kernels/base/arena.h"
#include "kernels/base/cuda_device.h"
#include "kernels/cuda/attention.h"
#include "kernels/ops.h"
#include "tests/support/where.h"

namespace trivet {
namespace {

using emulation::Site;

// Sites that are redundant because other sites impose the same order; they keep helpers simple.
struct Harmless {
  const char *what, *file, *text;  // the line in the kernel
  const char* why;
};
constexpr const char *kFirst = "the kernel's first reduction has no readers to wait for",
                     *kSanitizer = "lanes run one after the other here; ThreadSanitizer sees it";
constexpr Harmless kHarmless[] = {
    {"__syncwarp", "attention_hopper.cu", "if (j == seen - 1) b.queries.release(queries);",
     "the keys' release before it has one, and nothing is read in between"},
    {"__syncwarp", "attention_hopper_keys.cu", "r.keys.release(keys);",
     "the queries' release before it has one, and nothing is read in between"},
    {"mbarrier.try_wait", "attention_hopper.cu", "b.keys.wait_full(keys);",
     "this warpgroup does not read the tile; those that do have waited, and by their turns have released the stage's "
     "last tile"},
    {"mbarrier.try_wait", "attention_hopper.cu", "b.values.wait_full(values);", "as for keys"},
    {"__syncthreads", "layernorm.cu", "mu = block_reduce(sum, Sum(), 0.0f, shared) / static_cast<float>(h);", kFirst},
    {"__syncthreads", "cross_entropy.cu", "const float max = block_reduce(mine.max, Max(), -INFINITY, shared);",
     kFirst},
    {"__syncthreads", "cross_entropy.cu", "sum = block_reduce(sum, Sum(), 0.0, shared);", kFirst},
    {"__syncthreads", "fp8.cu", "largest = block_reduce(min(largest, 0x7f800000u), Max(), 0u, shared);", kFirst},
    {"__syncthreads", "layernorm.cu", "__syncthreads();",
     "before the first sum is written, block_reduce has barriers; in rows of one warp only ThreadSanitizer sees it"},
    {"__syncwarp", "norm.cu", "__syncwarp();", kSanitizer},  // before adding to zeroed bins
    {"__syncwarp", "norm.cu", "__syncwarp();", kSanitizer},  // between lanes that add to the same bins
};

// Memory shared by this process and its children.
struct Shared {
  static constexpr size_t kMost = 8 << 20;
  emulation::Sites sites;
  size_t bytes = 0;
  unsigned char results[kMost];
};

// A GPU, tensors with the same numbers each time, and the results.
class Gpu {
 public:
  explicit Gpu(Shared& to) : to_(to) {}

  Tensor make(DType dtype, const Shape& shape, float least, float most) {
    const Tensor tensor = arena_.allocate(dtype, shape);
    std::vector<unsigned char> bytes(static_cast<size_t>(tensor.bytes()));
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const float x = least + (most - least) * static_cast<float>((state_ = state_ * 1664525 + 1013904223) >> 24) / 256;
      if (dtype == DType::f32) reinterpret_cast<float*>(bytes.data())[i] = x;
      else if (dtype == DType::bf16) reinterpret_cast<bf16*>(bytes.data())[i] = bf16(x);
      else if (dtype == DType::i32) reinterpret_cast<int32_t*>(bytes.data())[i] = static_cast<int32_t>(x);
      else if (is_fp8(dtype)) bytes[static_cast<size_t>(i)] = static_cast<unsigned char>(x);  // codes
      else reinterpret_cast<int64_t*>(bytes.data())[i] = static_cast<int64_t>(x);
    }
    device_->copy_to_device(bytes.data(), tensor, *stream_);
    stream_->synchronize();
    return tensor;
  }
  Tensor of(const std::vector<int32_t>& numbers) {
    const Tensor tensor = arena_.allocate(DType::i32, {static_cast<int64_t>(numbers.size())});
    device_->copy_to_device(numbers.data(), tensor, *stream_);
    stream_->synchronize();
    return tensor;
  }
  Tensor zeros(DType dtype, const Shape& shape) {
    results_.push_back(make(dtype, shape, 0, 0));
    return results_.back();
  }
  cudaStream_t stream() const { return raw(*stream_); }
  void run(const AnyOp& op) { ops_->run(op, *stream_); }

  // Copies all result tensors, those that began as zeros, to the host.
  void keep_results() {
    for (const Tensor& result : results_) {
      const auto bytes = static_cast<size_t>(result.bytes());
      if (to_.bytes + bytes > Shared::kMost) fail("more results than there is room for");
      cudaMemcpyAsync(to_.results + to_.bytes, result.data, bytes, cudaMemcpyDeviceToHost, stream());
      to_.bytes += bytes;
    }
    stream_->synchronize();
  }

 private:
  Shared& to_;
  std::unique_ptr<Device> device_ = create_cuda_device(0);
  std::unique_ptr<Stream> stream_ = device_->create_compute_stream();
  std::unique_ptr<Ops> ops_ = create_cuda_ops(*device_, {});
  Arena arena_{*device_, "test"};
  std::vector<Tensor> results_;
  uint32_t state_ = 1;
};

struct Case {
  const char* name;
  std::function<void(Gpu&)> run;
};

// Runs in a child, as a single-threaded process like this one may fork. Returns its wait status.
int run_in_child(const Case& kernel, Shared& to, bool quiet) {
  to.bytes = 0;
  to.sites.steps = 0;
  const pid_t child = fork();
  if (child == 0) {
    const rlimit no_core{0, 0}, seconds{60, 60};  // the latter stops a thread that loops without waiting
    setrlimit(RLIMIT_CORE, &no_core);
    setrlimit(RLIMIT_CPU, &seconds);
    alarm(200);
    if (quiet) dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
    emulation::sites = &to.sites;
    {
      Gpu gpu(to);
      kernel.run(gpu);
      gpu.keep_results();
    }
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

// A return address's place in the kernels' source.
struct Line {
  std::string function, file, text;
  int line;
};

// By return address: its line in kernels/cuda, and the lines it is inlined into, innermost first.
std::map<const void*, std::vector<Line>> lines_of(const std::vector<Site>& sites) {
  std::map<std::string, const void*> by_offset;
  Dl_info program{};
  dladdr(reinterpret_cast<const void*>(&lines_of), &program);
  for (const Site& site : sites)
    for (size_t i = 0; i < site.frames; ++i) {
      Dl_info info{};
      // The emulation itself is in a library.
      if (!dladdr(site.returns[i], &info) || info.dli_fbase != program.dli_fbase) continue;
      char offset[32];
      const auto* const call = static_cast<const char*>(site.returns[i]) - 1;
      std::snprintf(offset, sizeof offset, "0x%016tx", call - static_cast<const char*>(info.dli_fbase));
      by_offset[offset] = site.returns[i];
    }
  std::string command = "addr2line -aCfpi -e /proc/" + std::to_string(getpid()) + "/exe";
  for (const auto& [offset, address] : by_offset) command += " " + offset;
  const std::unique_ptr<FILE, int (*)(FILE*)> out(popen(command.c_str(), "r"), pclose);
  std::map<const void*, std::vector<Line>> lines;
  const std::regex kLine(
      "(?: \\(inlined by\\) |(0x[0-9a-f]*): )(.*) at .*/kernels/cuda/([a-z0-9_]+\\.cuh?):(\\d+).*\n");
  const void* address = nullptr;
  for (char text[1 << 16]; out && std::fgets(text, sizeof text, out.get());) {
    if (text[0] == '0') address = by_offset.at(std::string(text, 18));
    std::cmatch parts;
    if (!std::regex_match(text, parts, kLine) || std::strstr(text, "/emulation/")) continue;
    Line line{parts.str(2), parts.str(3), "", std::stoi(parts.str(4))};
    // Without return type, namespaces and arguments: "void trivet::f<int>(int)" is f.
    line.function = std::regex_replace(line.function, std::regex("<[^()]*>|\\(anonymous namespace\\)::|trivet::"), "");
    line.function = std::regex_replace(line.function.substr(0, line.function.find('(')), std::regex("^.* "), "");
    std::ifstream source(source_path("kernels/cuda/" + line.file));
    for (int i = 0; i < line.line; ++i) std::getline(source, line.text);
    line.text.erase(0, line.text.find_first_not_of(' '));
    lines[address].push_back(line);
  }
  return lines;
}

struct Score {
  size_t noticed = 0, all = 0;
};

Score skip_each_site(const std::vector<Case>& kernels) {
  Score score;
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no memory to share");
  auto& shared = *new (memory) Shared;
  struct Result {
    const char* what;
    Line line;
    bool noticed;
  };
  std::map<std::string, Result> results;  // by place in the source
  for (const Case& kernel : kernels) {
    shared.sites = {};
    if (run_in_child(kernel, shared, false) != 0) fail(std::string(kernel.name) + " fails with all of its sites");
    const std::vector<unsigned char> expected(shared.results, shared.results + shared.bytes);
    const std::vector<Site> found(shared.sites.site, shared.sites.site + shared.sites.count);
    const auto lines = lines_of(found);
    shared.sites.most_steps = 20 * shared.sites.steps;
    std::map<std::string, int> ends;
    for (const Site& site : found) {
      // The call in the kernel's own file, and the helpers that it calls.
      std::string name = site.what;
      const Line* last = nullptr;
      for (size_t i = 0; i < site.frames && !(last && last->file.ends_with(".cu")); ++i)
        if (const auto at = lines.find(site.returns[i]); at != lines.end())
          for (const Line& line : at->second) {
            name += ", " + line.file + ":" + std::to_string(line.line);  // of any copy that the compiler made
            last = &line;
            if (line.file.ends_with(".cu")) break;
          }
      if (!last) fail(name + ": no source line: is addr2line there?");
      // A place in the source need be noticed only once, in any template instance that contains it.
      if (const auto known = results.find(name); known != results.end() && known->second.noticed) {
        ++ends["noticed before"];
        continue;
      }
      shared.sites.skipped = site.hash;
      const int status = run_in_child(kernel, shared, true);
      const bool same = status == 0 && shared.bytes == expected.size() &&
                        std::memcmp(shared.results, expected.data(), expected.size()) == 0;
      ++ends[same                                                 ? "unnoticed"
             : status == 0                                        ? "with other results"
             : WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT ? "with a message"
                                                                  : "by a limit or a signal"];
      results.try_emplace(name, Result{site.what, *last, false}).first->second.noticed |= !same;
    }
    std::printf("%s: %zu sites; ended:", kernel.name, found.size());
    for (const auto& [end, count] : ends) std::printf(" %d %s", count, end.c_str());
    std::printf("\n");
  }
  std::map<const Harmless*, int> explained;  // by the line
  for (const auto& [name, result] : results) {
    score.noticed += result.noticed;
    if (result.noticed) continue;
    const auto* const harmless = std::ranges::find_if(kHarmless, [&](const Harmless& h) {
      const auto known = explained.find(&h);
      return (known == explained.end() || known->second == result.line.line) &&
             result.what == std::string_view(h.what) && result.line.file == h.file && result.line.text == h.text;
    });
    // Each excuse covers one line, which the compiler may have copied; another line with the same text may be needed.
    if (harmless == std::end(kHarmless)) {
      ADD_FAILURE() << "nobody notices that a kernel skips " << name << ": " << result.line.text;
      continue;
    }
    explained.emplace(harmless, result.line.line);
    std::printf("not noticed, and harmless: %s: %s\n", name.c_str(), harmless->why);
  }
  score.all = results.size();
  std::printf("%zu of %zu sites are noticed: %.1f %%\n", score.noticed, score.all, 100.0 * score.noticed / score.all);
  munmap(memory, sizeof(Shared));
  return score;
}

struct Sites : testing::Test {
#if defined(__SANITIZE_THREAD__)
  void SetUp() override { GTEST_SKIP() << "ThreadSanitizer looks for races itself, and does not follow forks"; }
#endif
};

// For backward passes too: any values will do. documents: two, the first 3/4 of the sequence long.
template <class Kernel>
Case attention(const char* name, const Kernel& kernel, std::vector<std::array<int64_t, 4>> shapes,
               bool documents = false) {
  return {name, [=](Gpu& gpu) {
            for (const auto& [s, heads, kv_heads, d] : shapes) {
              const Shape qkv{s, 1, (heads + 2 * kv_heads) * d}, out{s, 1, heads * d}, rows{heads, s};
              AttentionArgs args{.qkv = qkv_views(gpu.make(DType::bf16, qkv, -1, 1), heads, kv_heads),
                                 .out = heads_view(gpu.zeros(DType::bf16, out), heads, kv_heads),
                                 .lse = gpu.make(DType::f32, rows, 3, 4).template as<float>(),
                                 .dropout = {}};
              std::vector<int32_t> starts(static_cast<size_t>(s));
              std::fill(starts.begin() + s * 3 / 4, starts.end(), static_cast<int32_t>(s * 3 / 4));
              if (documents) args.documents.starts = gpu.of(starts);
              args.dout = args.out;
              args.dout.memory = gpu.make(DType::bf16, out, -1, 1);
              args.dqkv = qkv_views(gpu.zeros(DType::bf16, qkv), heads, kv_heads);
              args.delta = gpu.make(DType::f32, rows, -0.5f, 0.5f).template as<float>();
              kernel(args, TaskCounters{gpu.zeros(DType::i32, {2}).template as<int>(), 1}, gpu.stream());
            }
          }};
}

TEST_F(Sites, OfTensorCoresAreNoticed) {
  const auto flash_forward = [](const AttentionArgs& args, const TaskCounters&, cudaStream_t stream) {
    flash_attention_forward(args, stream);
  };
  const auto flash_backward = [](const AttentionArgs& args, const TaskCounters&, cudaStream_t stream) {
    flash_attention_backward(args, stream);
  };
  // Tasks of several tiles, and more single-tile tasks than stages: {s, heads, kv_heads, d}.
  const Score score = skip_each_site({
      attention("flash forward", flash_forward, {{300, 1, 1, 64}}),
      attention("flash backward", flash_backward, {{200, 1, 1, 64}}),
      attention("Hopper forward", hopper_attention_forward, {{450, 2, 1, 64}, {100, 6, 6, 64}}, true),
      attention("Hopper forward, 128 columns", hopper_attention_forward, {{450, 2, 1, 128}, {100, 6, 6, 128}}),
      attention("Hopper keys", hopper_attention_backward_keys, {{450, 2, 1, 64}, {60, 6, 6, 64}}, true),
      attention("Hopper keys, 128 columns", hopper_attention_backward_keys, {{450, 2, 1, 128}, {60, 6, 6, 128}}),
      attention("Hopper queries", hopper_attention_backward_queries, {{450, 2, 1, 64}, {100, 6, 6, 64}}, true),
      attention("Hopper queries, 128 columns", hopper_attention_backward_queries, {{450, 2, 1, 128}, {100, 6, 6, 128}}),
  });
  EXPECT_GE(100 * score.noticed, 95 * score.all);
}

TEST_F(Sites, OfReductionsAreNoticed) {
  constexpr int64_t n = 12, h = 1200;
  constexpr DType f32 = DType::f32;
  const auto layernorm = [](Gpu& gpu) {
    const Tensor x = gpu.make(f32, {n, h}, -1, 1), gamma = gpu.make(f32, {h}, 0, 2);
    const Tensor mean = gpu.zeros(f32, {n}), rstd = gpu.zeros(f32, {n});
    gpu.run(op::LayernormForward{.x = x,
                                 .gamma = gamma,
                                 .beta = gpu.make(f32, {h}, -1, 1),
                                 .eps = 1e-5f,
                                 .y = gpu.zeros(f32, {n, h}),
                                 .mean = mean,
                                 .rstd = rstd});
    gpu.run(op::LayernormBackward{.dy = gpu.make(f32, {n, h}, -1, 1),
                                  .x = x,
                                  .gamma = gamma,
                                  .mean = mean,
                                  .rstd = rstd,
                                  .residual = gpu.make(f32, {n, h}, -1, 1),
                                  .dx = gpu.zeros(f32, {n, h}),
                                  .dgamma = gpu.zeros(f32, {h}),
                                  .dbeta = gpu.zeros(f32, {h})});
  };
  const auto cross_entropy = [](Gpu& gpu) {
    const Tensor targets = gpu.make(DType::i32, {n}, 0, h - 1), max = gpu.zeros(f32, {n}), sum = gpu.zeros(f32, {n});
    const Tensor target = gpu.zeros(f32, {n}), logits = gpu.zeros(f32, {n, h});
    gpu.run(op::Add{gpu.make(f32, {n, h}, -4, 4), logits, logits});
    gpu.run(op::CrossEntropyForward{.logits = logits,
                                    .targets = targets,
                                    .first_column = 0,
                                    .vocab_size = h - 1,
                                    .row_max = max,
                                    .row_sum = sum,
                                    .target_logit = target,
                                    .gradient = logits,
                                    .scale = 0.5f});
    constexpr int64_t rows = 3000;
    gpu.run(op::CrossEntropyLoss{gpu.make(DType::i32, {rows}, 0, 9), gpu.make(f32, {rows}, 0, 1),
                                 gpu.make(f32, {rows}, 1, 2), gpu.make(f32, {rows}, 0, 1), 0.5f, gpu.zeros(f32, {1})});
  };
  const auto sums = [](Gpu& gpu) {
    gpu.run(op::ColumnSum{gpu.make(f32, {100, h}, -1, 1), gpu.zeros(f32, {h})});
    const Tensor numbers = gpu.make(f32, {40, h}, -1, 1);
    gpu.run(op::SumOfSquares{{numbers}, gpu.zeros(DType::i64, {kExactSumBins})});
    gpu.run(op::Fill{Tensor{numbers.data, f32, {8}}, INFINITY});
    gpu.run(op::SumOfSquares{{numbers}, gpu.zeros(DType::i64, {kExactSumBins})});
  };
  const auto fp8 = [](Gpu& gpu) {
    const Tensor x = gpu.make(f32, {256, 8}, -1, 1);
    gpu.run(op::Fill{x.slice(255, 1), 5});  // the block's last warp holds the largest
    gpu.run(op::Amax{x, gpu.zeros(f32, {1})});
    gpu.run(op::Matmul{.a = gpu.make(DType::e4m3, {144, 130}, 0, 127),
                       .b = gpu.make(DType::e4m3, {144, 20}, 0, 127),
                       .c = gpu.zeros(f32, {130, 20}),
                       .transpose_a = true,
                       .scales = {gpu.make(f32, {1}, 1, 1), gpu.make(f32, {1}, 1, 1)}});
  };
  skip_each_site({{"layer norm", layernorm}, {"cross-entropy", cross_entropy}, {"sums", sums}, {"FP8", fp8}});
}

}  // namespace
}  // namespace trivet
