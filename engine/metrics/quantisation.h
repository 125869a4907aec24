// The effect of quantisation on the tensors of a run (precision.fp8_report), for the end of its log: how many values
// became zero or saturated, and the error of the values that are multiplied.
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
  // One row per layer and role that was quantised, over all ranks: a tensor that several ranks quantise counts once for
  // each. units: this rank's; layers: the whole model's. Collective.
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
