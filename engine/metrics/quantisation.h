// The effect of quantisation on a run's tensors (precision.fp8_report), printed at the end of its log: how many values
// became zero or saturated, and the error of the dequantised values.
#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "base/text.h"
#include "kernels/ops.h"
#include "parallel/comm/host_world.h"
#include "parallel/param.h"

namespace trivet {

// Forwards ops, and inspects the input and output of each op::Quantize. CPU only: its compute stream runs an op when it
// is queued.
class QuantisationReport : public Ops {
 public:
  explicit QuantisationReport(std::unique_ptr<Ops> ops) : ops_(std::move(ops)) {}
  void run(const AnyOp& op, Stream& stream) override;
  // One row per quantised layer and role, over all ranks: a tensor that several ranks quantise counts once per rank.
  // units: this rank's units; layers: the number of layers in the whole model. Collective.
  TextBlock table(const std::vector<ParamUnit>& units, int64_t layers, HostWorld& host) const;

 private:
  struct Sums {
    double numbers = 0, zeroed = 0, cut = 0, squares = 0, squared_errors = 0;
    Sums& operator+=(const Sums& other);
  };
  using Roles = std::array<Sums, 3>;  // op::Quantize::Role

  std::unique_ptr<Ops> ops_;
  std::vector<Roles> of_unit_;  // [unit of this rank]
};

}  // namespace trivet
