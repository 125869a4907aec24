#include "engine/config/memory_plan.h"

#include "engine/metrics/accounting.h"
#include "kernels/base/check.h"

namespace trivet {

int64_t MemoryPlan::total() const {
  int64_t sum = 0;
  for (const MemoryItem& item : items) sum += item.bytes;
  return sum;
}

int64_t flat_elements(const ModelConfig& model, const Layout& layout) {
  int64_t elements = 0;
  for (const ParameterTensor& tensor : parameter_tensors(model, layout.padded_vocab)) {
    const int64_t mine = tensor.cut ? tensor.elements / layout.mesh.t : tensor.elements;
    elements += (mine + kFlatAlignment - 1) / kFlatAlignment * kFlatAlignment;
  }
  return elements;
}

MemoryPlan plan_memory(const Config& config, const Layout& layout) {
  const std::string& dtype = config.precision.dtype;
  check(dtype == "fp32" || dtype == "bf16", "no memory plan for dtype " + dtype);
  const int64_t elements = flat_elements(config.model, layout);
  const bool main_weights = dtype == "bf16";
  return {{{"weights", (main_weights ? 2 : 4) * elements},
           {"gradients", 4 * elements},
           {"optimizer", (main_weights ? 12 : 8) * elements}}};
}

}  // namespace trivet
