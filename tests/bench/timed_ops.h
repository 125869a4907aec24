// Ops that time each call on a device whose compute stream runs inline (a CPU): each part of a step against the least
// time that it could take. A GELU epilogue is run and timed as a separate op.
//
// The floor of a part is its FLOPs at the GEMM peak, or its bytes at copy bandwidth, whichever takes longer. Bytes:
// each tensor counts once when read and once when written; embedding tables count only the rows used. FLOPs: those of
// GEMMs and, in attention, those below the diagonal, without the scores that the backward pass recomputes.
#pragma once

#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/arena.h"
#include "kernels/ops.h"

namespace trivet {

class TimedOps : public Ops {
 public:
  struct Part {
    std::string name;
    double seconds = 0, flops = 0;
    int64_t bytes = 0, calls = 0;
    double floor(double flops_per_second, double bytes_per_second) const {
      return std::max(flops / flops_per_second, static_cast<double>(bytes) / bytes_per_second);
    }
  };
  // vocab: columns of the output layer, which identify its GEMMs.
  TimedOps(std::unique_ptr<Ops> ops, int64_t vocab) : ops_(std::move(ops)), vocab_(vocab) {}

  void run(const AnyOp& any, Stream& stream) override {
    const auto* const matmul = std::get_if<op::Matmul>(&any);
    if (!matmul || !(matmul->pre_activation || matmul->activation_backward))
      return std::visit([&](const auto& op) { time(op, stream); }, any);
    op::Matmul plain = *matmul;
    plain.pre_activation = {}, plain.activation_backward = {};
    if (matmul->pre_activation) plain.c = matmul->pre_activation;
    time(plain, stream);
    if (matmul->pre_activation) time(op::ActivationForward{.x = plain.c, .y = matmul->c}, stream);
    else time(op::ActivationBackward{.x = matmul->activation_backward, .dy = plain.c, .dx = plain.c}, stream);
  }

  void clear() { parts_.clear(); }
  const std::vector<Part>& parts() const { return parts_; }

 private:
  template <class Op>
  void time(const Op& op, Stream& stream) {
    const int64_t start = now_ns();
    ops_->run(op, stream);
    const double seconds = static_cast<double>(now_ns() - start) * 1e-9;
    Part& part = part_of(name(op));
    part.seconds += seconds;
    part.flops += flops(op);
    part.bytes += bytes(op);
    ++part.calls;
  }

  Part& part_of(const std::string& name) {
    const auto found = std::find_if(parts_.begin(), parts_.end(), [&](const Part& part) { return part.name == name; });
    if (found != parts_.end()) return *found;
    return parts_.emplace_back(Part{.name = name});
  }

  template <class Op>
  static std::string name(const Op& op) {
    return op.kSpan.name;
  }
  std::string name(const op::Matmul& op) const {
    const bool head = op.b.cols() == vocab_ || op.b.rows() == vocab_ || op.c.rows() == vocab_;
    return fmt::format("{} {}", head ? "head GEMM" : "GEMM",
                       op.transpose_a   ? "backward weight"
                       : op.transpose_b ? "forward"
                                        : "backward input");
  }

  template <class Op>
  static double flops(const Op&) {
    return 0;
  }
  static double flops(const op::Matmul& op) {
    return 2.0 * static_cast<double>(op.c.numel()) * static_cast<double>(op.transpose_a ? op.a.rows() : op.a.cols());
  }
  static double flops(const op::AttentionForward& op) { return 2 * flops_below_diagonal(op.qkv.q.layout); }
  static double flops(const op::AttentionBackward& op) { return 4 * flops_below_diagonal(op.qkv.q.layout); }
  // FLOPs of one attention GEMM.
  static double flops_below_diagonal(const HeadsLayout& q) {
    return static_cast<double>(q.s * (q.s + 1) * q.b) * static_cast<double>(q.heads() * q.d);
  }

  template <class Op>
  static int64_t bytes(const Op& op) {
    int64_t sum = 0;
    for_each_field(op, [&]<class T>(const T& field) { add_bytes(field, sum); });
    return sum;
  }
  static int64_t bytes(const op::EmbeddingForward& op) { return 2 * op.out.bytes(); }
  static int64_t bytes(const op::EmbeddingBackward& op) { return op.dout.bytes() + 2 * op.dout.numel() * 4; }
  static int64_t bytes(const op::FindNonFinite& op) { return op.accepted ? 0 : op.x.bytes(); }  // accepted: no search
  template <class T>
  static void add_bytes(const T& field, int64_t& sum) {
    if constexpr (is_argument<T>) {
      if (field) sum += field.bytes() * (T::role == Role::in_out ? 2 : 1);
    } else if constexpr (is_list<T>) {
      for (const auto& element : field) {
        if constexpr (is_argument<std::remove_cvref_t<decltype(element)>>) add_bytes(element, sum);
        else for_each_field(element, [&](const auto& inner) { add_bytes(inner, sum); });
      }
    }
  }

  const std::unique_ptr<Ops> ops_;
  const int64_t vocab_;
  std::vector<Part> parts_;
};

// Bytes/s, read plus written, in the fastest of a few copies of tensors too large for any cache.
inline double measure_copy_speed(Device& device, Ops& ops) {
  constexpr int64_t kElements = 64 << 20;
  const auto stream = device.create_compute_stream();
  Arena arena(device, "copy");
  const Tensor from = arena.allocate(DType::f32, {kElements}), to = arena.allocate(DType::f32, {kElements});
  ops.run(op::Fill{from, 1}, *stream);
  double best = 0;
  for (int run = 0; run < 4; ++run) {
    const int64_t start = now_ns();
    ops.run(op::Convert{.from = from, .to = to}, *stream);
    stream->synchronize();
    best = std::max(best, 2.0 * static_cast<double>(from.bytes()) / static_cast<double>(now_ns() - start) * 1e9);
  }
  return best;
}

// Prints a step's parts with their floors; the time outside all ops is the rest.
inline void print_parts(std::vector<TimedOps::Part> parts, double step_seconds, double flops_per_second,
                        double bytes_per_second) {
  std::sort(parts.begin(), parts.end(), [](const auto& x, const auto& y) { return x.seconds > y.seconds; });
  const auto row = [&](const std::string& name, double seconds, double floor, const std::string& calls) {
    fmt::print("    {:<26} {:>10.1f} {:>6.1f}% {:>10.1f} {:>10.2f} {:>6}\n", name, seconds * 1e3,
               100 * seconds / step_seconds, floor * 1e3, floor / seconds, calls);
  };
  fmt::print("    {:<26} {:>10} {:>7} {:>10} {:>10} {:>6}\n", "part", "ms", "share", "floor ms", "floor/time", "calls");
  constexpr double kSmall = 1e-3;  // share of a step; parts below it share one row
  double rest = step_seconds, floors = 0, small = 0, small_floors = 0;
  for (const TimedOps::Part& part : parts) {
    const double floor = part.floor(flops_per_second, bytes_per_second);
    rest -= part.seconds, floors += floor;
    if (part.seconds < kSmall * step_seconds) small += part.seconds, small_floors += floor;
    else row(part.name, part.seconds, floor, std::to_string(part.calls));
  }
  row("other ops", small, small_floors, "");
  row("rest (host, waits)", rest, 0, "");
  row("step", step_seconds, floors, "");
}

}  // namespace trivet
