#include <algorithm>
#include <vector>

#include "kernels/base/arena.h"
#include "kernels/ops.h"

namespace trivet {

GemmPeak measure_gemm_peak(Device& device, Ops& ops, DType dtype) {
  struct Size {
    int64_t m, n, k;
  };
  constexpr Size kSizes[] = {{1024, 1024, 1024}, {2048, 1024, 1024}, {1536, 1536, 768}};
  constexpr double kSeconds = 0.25;  // per size
  const auto stream = device.create_compute_stream();
  GemmPeak peak;
  for (const Size& size : kSizes) {
    Arena arena(device, "gemm peak");  // for one size at a time, as memory plans do not count it
    const Tensor a = arena.allocate(dtype, {size.m, size.k}), b = arena.allocate(dtype, {size.n, size.k});
    const Tensor c = arena.allocate(dtype, {size.m, size.n});
    ops.run(op::Fill{a, 0.5f}, *stream);
    ops.run(op::Fill{b, 0.25f}, *stream);
    const double flops = 2.0 * static_cast<double>(size.m * size.n) * static_cast<double>(size.k);
    std::vector<double> runs;
    // The first run creates the kernel and touches the pages; it may be slow, but it counts as a run.
    for (const int64_t begin = now_ns(); static_cast<double>(now_ns() - begin) * 1e-9 < kSeconds;) {
      const int64_t start = now_ns();
      ops.run(op::Matmul{.a = a, .b = b, .c = c, .transpose_b = true}, *stream);
      stream->synchronize();
      runs.push_back(flops / static_cast<double>(now_ns() - start) * 1e-3);
    }
    std::sort(runs.begin(), runs.end());
    if (runs.back() > peak.tflops) peak = {runs.back(), runs[runs.size() / 2]};
  }
  return peak;
}

}  // namespace trivet
