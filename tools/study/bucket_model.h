// The data-parallel communication that a step exposes, as a function of the bucket size: the curve beside a study's
// measured points. A replay of what GradSync and ParamGather start, over the link that the run emulates: calls leave
// through one port, one after the other, and pay a latency each (one at a time without overlap or with one in flight).
//
//   gradients  a bucket is ready when the last micro-batch's backward pass has left its units; what is on the wire
//   after
//              the end of that pass is exposed. Without overlap_grad_reduce all of it is
//   weights    (optim) gathered in the order of the forward pass; exposed is what the first micro-batch's forward pass
//              waits for. Without overlap_param_gather all of it is
//   numbers    the gradient norm and the loss: one or two all-reduces of a few bytes, exposed
//
// A third of the compute time is forward; blocks and head take equal parts of it, the embedding none. What that leaves
// out: calls that are slower than the link because a core is taken, and the time between calls.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/config/config.h"
#include "engine/config/validate.h"

namespace trivet {

// Seconds, of a step in which a rank computes for so long, by the buckets that FlatBuffer lays out. `config` is
// resolved. Empty where that does not apply: one data-parallel rank, a pipeline or tensor parallelism (whose own calls
// lie between), buckets that are units (optim_grads, optim_grads_params), or a link that is not emulated.
std::optional<double> modelled_exposed(const Config& config, const Layout& layout, int64_t bucket_size,
                                       double compute_seconds);

}  // namespace trivet
