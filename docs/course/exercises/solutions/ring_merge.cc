#include "docs/course/exercises/ring_merge.h"

#include <algorithm>
#include <cmath>

namespace trivet::exercise {

void ring_merge(Hop& total, const Hop& hop) {
  const float larger = std::max(total.lse, hop.lse);
  if (std::isinf(larger)) return;
  const float lse = larger + std::log(std::exp(total.lse - larger) + std::exp(hop.lse - larger));
  const float old_share = std::exp(total.lse - lse), new_share = std::exp(hop.lse - lse);
  for (size_t i = 0; i < total.out.size(); ++i) total.out[i] = old_share * total.out[i] + new_share * hop.out[i];
  total.lse = lse;
}

}  // namespace trivet::exercise
