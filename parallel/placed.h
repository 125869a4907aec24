// Placed: a tensor whose C++ type states its placement over the tensor-parallel group. Layers exchange these, so code
// that connects layers whose placements disagree does not compile.
//
// A Placed converts to a Tensor implicitly. A Tensor becomes a Placed only explicitly, where its producer vouches for
// the placement; a Placed of another Place never converts.
#pragma once

#include "kernels/base/tensor.h"

namespace trivet {

// s* is s, or s/t under sequence parallelism; s is the number of positions on this context rank.
enum class Place {
  residual,  // [s*, b, n]  all positions, the same on every rank; under sequence parallelism those of this rank
  whole,     // [s, b, n]   all positions, the same on every rank
  partial,   // [s, b, n]   this rank's term of a sum over the group
  hidden,    // [s, b, n/t] all positions, this rank's columns
  vocab      // [s, b, v/t] all positions, this rank's entries of the vocabulary
};

template <Place kPlace>
struct Placed : Tensor {
  Placed() = default;
  explicit Placed(const Tensor& tensor) : Tensor(tensor) {}
  template <Place kOther>
  requires(kOther != kPlace) Placed(const Placed<kOther>&)
  = delete;

  Placed slice(int64_t begin, int64_t count) const { return Placed(Tensor::slice(begin, count)); }  // positions
};

using Residual = Placed<Place::residual>;
using Whole = Placed<Place::whole>;
using Partial = Placed<Place::partial>;
using Hidden = Placed<Place::hidden>;
using Vocab = Placed<Place::vocab>;

}  // namespace trivet
