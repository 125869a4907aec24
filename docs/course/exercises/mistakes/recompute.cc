// The mistake: the generator's state is not kept, so the second forward pass draws a new mask. Shapes are right, the
// loss falls, and the gradient is that of another network.
#include "docs/course/exercises/recompute.h"

namespace trivet::exercise {

std::vector<Checkpoint> forward_keeping_few(std::span<const Layer> layers, double x, size_t every, Random& random) {
  std::vector<Checkpoint> kept;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (i % every == 0) kept.push_back({i, x, {}});
    x = layers[i].forward(x, random);
  }
  return kept;
}

double backward_recomputing(std::span<const Layer> layers, const std::vector<Checkpoint>& kept, double dy) {
  size_t end = layers.size();
  for (auto group = kept.rbegin(); group != kept.rend(); ++group) {
    std::vector<Checkpoint> all;
    auto [first, x, random] = *group;
    for (size_t i = first; i < end; ++i) {
      all.push_back({i, x, random});
      x = layers[i].forward(x, random);
    }
    for (auto at = all.rbegin(); at != all.rend(); ++at) dy = layers[at->layer].backward(at->input, dy, at->random);
    end = first;
  }
  return dy;
}

}  // namespace trivet::exercise
