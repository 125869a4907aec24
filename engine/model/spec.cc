#include "engine/model/spec.h"

#include <string>

#include "kernels/base/check.h"

namespace trivet {

void expect_runs(const ModelSpec& spec) {
  const auto expect = [](bool runs, const std::string& found, const char* expected) {
    if (!runs) throw ConfigError("this model cannot run yet: found " + found + ", expected " + expected);
  };
  const AttentionSpec& a = spec.attention;
  expect(spec.norm == Norm::layernorm, "RMSNorm", "layer norms: there is no other norm among the operations");
  expect(spec.activation == Activation::gelu, "SwiGLU", "GELU: a block has one GEMM before its activation");
  expect(spec.positions == Positions::learned, "rotary positions",
         "learned ones: attention does not rotate queries and keys");
  expect(spec.biases, "linear layers without biases", "biases: every linear layer declares one");
  expect(a.kv_heads == a.heads,
         std::to_string(a.kv_heads) + " heads of keys and values for " + std::to_string(a.heads) + " of queries",
         "as many: partitioning fewer over tensor-parallel ranks is not tested yet");
  expect(a.width() == spec.hidden,
         std::to_string(a.heads) + " heads of width " + std::to_string(a.head_width) + " in a hidden size of " +
             std::to_string(spec.hidden),
         "heads that fill it: the projection is square");
}

}  // namespace trivet
