// AdamW (Loshchilov, Hutter 2019), in fp32.
#pragma once

#include "kernels/step_ops.h"
#include "parallel/data/optimizer.h"

namespace trivet {

class Adam : public Optimizer {
 public:
  struct Constants {
    double beta1 = 0, beta2 = 0, eps = 0;
  };
  // Moments and main weights are allocated in `arena`. decoupled: parameters with ParamSpec::decoupled_lr have their
  // own learning rate.
  Adam(FlatBuffer& flat, Arena& arena, const Constants& constants, bool decoupled = false);

  void step(Ops& ops, Tensor accepted, const UpdateStep& how, Stream& stream) override;
  std::vector<State> states() const override {
    return {{"exp_avg", "first moment", m_}, {"exp_avg_sq", "second moment", v_}};
  }

 private:
  const Constants constants_;
  Tensor m_, v_;  // [owned_numel] fp32
  List<AdamWShard> shards_, decoupled_;
};

}  // namespace trivet
