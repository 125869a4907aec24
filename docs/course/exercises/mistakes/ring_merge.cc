// The mistake: the new lse is the larger of the two. Two hops give the right result; with three or more, the
// first ones count for too little.
#include "docs/course/exercises/ring_merge.h"

#include <algorithm>
#include <cmath>

namespace trivet::exercise {

void ring_merge(Hop& total, const Hop& hop) {
  const float larger = std::max(total.lse, hop.lse);
  if (std::isinf(larger)) return;
  const float old_weight = std::exp(total.lse - larger), new_weight = std::exp(hop.lse - larger);
  for (size_t i = 0; i < total.out.size(); ++i)
    total.out[i] = (old_weight * total.out[i] + new_weight * hop.out[i]) / (old_weight + new_weight);
  total.lse = larger;
}

}  // namespace trivet::exercise
