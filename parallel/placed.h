// Placed: a tensor whose C++ type says how it stands over the tensor-parallel group. What flows between layers is one,
// so that two layers that do not fit do not compile.
//
// It is a Tensor, for ops and whoever cares no more. A Tensor becomes one explicitly, by the word of who has made it
// what it says; one of another place never does.
#pragma once

#include "kernels/base/tensor.h"

namespace trivet {

// s* is s, or s/t under sequence parallelism.
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
