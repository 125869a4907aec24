// Who computes attention on a GPU: Trivet's own kernels, or cuDNN's, as model.attention_backend says. `auto` is
// measured: each rank times both ways at the shape of its micro-batches, and the ranks together take the faster one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/config/config.h"
#include "parallel/comm/host_world.h"
#include "kernels/ops.h"

namespace trivet {

// Of one micro-batch, on one tensor-parallel rank. The config is a resolved one.
AttentionShape attention_shape_of(const Config& config);

// Ops in which attention of that shape is cuDNN's; null: with Trivet's own kernels for all. Throws ConfigError where
// that cannot be.
using MakeOps = std::function<std::unique_ptr<Ops>(const std::optional<AttentionShape>& cudnn)>;

// What one rank found. Its ops are gone, with the workspaces that they took.
struct AttentionTrial {
  bool own = true, cudnn = false;    // which ways are not out of the question
  int64_t own_ns = 0, cudnn_ns = 0;  // of a forward and a backward pass, where both are not
  std::string why{};                 // one is
};
// Throws ConfigError where model.attention_backend asks for what cannot be. Not collective.
AttentionTrial try_attention(const Config& config, Device& device, const MakeOps& make_ops);

struct AttentionChoice {
  bool cudnn = false;
  std::string name{};  // for people
};
// The same way on all ranks: cuDNN's only where each of them has it. Collective.
AttentionChoice choose_attention(const AttentionTrial& trial, HostWorld& host);

}  // namespace trivet
