// Chooses the attention kernels on a GPU, Trivet's own or cuDNN's, by model.attention_backend. For `auto` each rank
// times both at the shape of its micro-batches, and all ranks use the faster one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/ops.h"
#include "parallel/comm/host_world.h"

namespace trivet {

struct Config;

// The shape of one micro-batch on one tensor-parallel rank. `config` is resolved.
AttentionShape attention_shape_of(const Config& config);

// Makes Ops with cuDNN's attention for that shape; null: with Trivet's own kernels. Throws ConfigError where it cannot.
using MakeOps = std::function<std::unique_ptr<Ops>(const std::optional<AttentionShape>& cudnn)>;

// One rank's measurements.
struct AttentionTrial {
  bool own = true, cudnn = false;    // the available backends
  int64_t own_ns = 0, cudnn_ns = 0;  // of a forward and a backward pass, where both are available
  std::string why{};                 // only one is
};
// Throws ConfigError where the requested model.attention_backend is not available. Not collective.
AttentionTrial try_attention(const Config& config, Device& device, const MakeOps& make_ops);

struct AttentionChoice {
  bool cudnn = false;
  std::string name{};  // for people
};
// One choice for all ranks: cuDNN only where it is available on each. Collective.
AttentionChoice choose_attention(const AttentionTrial& trial, HostWorld& host);

}  // namespace trivet
