// CpuOps: runs ops on CPU streams, with the kernels of one instruction set.
#include "kernels/cpu/test_hooks.h"
#include "kernels/cpu_kernels.h"

namespace trivet {

int64_t gemm_cache_divisor = 1;
bool only_last_parts = false;

namespace {

class CpuOps : public Ops {
 public:
  CpuOps(std::unique_ptr<CpuKernels> kernels, bool narrow_fp8_sums)
      : kernels_(std::move(kernels)), narrow_fp8_sums_(narrow_fp8_sums) {}

  void run(const AnyOp& any, Stream& stream) override {
    if (const auto* const wide = std::get_if<op::Matmul>(&any); wide && narrow_fp8_sums_ && !wide->scales.narrow_sums) {
      op::Matmul narrow = *wide;
      narrow.scales.narrow_sums = true;
      return run(narrow, stream);
    }
    const auto queue = [&]<class Op>(const Op& op) {
      check_arguments(op);
      stream.run(Op::kSpan, [this, op] { kernels_->compute(op); });
    };
    std::visit(queue, any);
    if (const auto* const loss = std::get_if<op::CrossEntropyForward>(&any); loss && loss->gradient)
      queue(backward_of(*loss));
    // Fusing the activation into the GEMM, block by block in the cache, would take 1.0 to 1.1 times as long (GPT-2
    // 124M, fp32 and bf16), because the work is compute-bound.
    if (const auto* const matmul = std::get_if<op::Matmul>(&any)) {
      if (matmul->pre_activation) queue(activation_of(*matmul));
      if (matmul->residual) queue(residual_of(*matmul));
      if (matmul->bias_grad) queue(op::ColumnSum{matmul->a, matmul->bias_grad});
      if (matmul->activation_backward) queue(activation_backward_of(*matmul));
    }
  }

 private:
  const std::unique_ptr<CpuKernels> kernels_;
  const bool narrow_fp8_sums_;
};

}  // namespace

std::unique_ptr<Ops> create_cpu_ops(int threads, std::optional<CpuIsa> asked, bool narrow_fp8_sums) {
  check(threads >= 1, "CpuOps needs at least one thread");
  const CpuIsa isa = asked.value_or(best_cpu_isa());
  if (const std::string problem = cpu_isa_problem(isa); !problem.empty())
    throw ConfigError("CPU kernels for " + std::string(name_of(isa)) + ": " + problem);
  return std::make_unique<CpuOps>(create_cpu_kernels(isa, threads), narrow_fp8_sums);
}

}  // namespace trivet
