#include "docs/course/exercises/recompute.h"

#include "docs/course/exercises/support/testing.h"

namespace trivet::exercise {
namespace {

TEST(recompute, has_the_gradient_of_keeping_everything) {
  std::vector<Layer> layers;
  for (const float weight : numbers(11, 1)) layers.push_back({1.5 + weight});
  Random random{.draws = 1000};  // other layers have drawn before
  std::vector<double> inputs{0.8};
  for (const Layer& layer : layers) inputs.push_back(layer.forward(inputs.back(), random));
  double expected = 1;
  for (size_t i = layers.size(); i-- > 0;) expected = layers[i].backward(inputs[i], expected, {1000 + i});

  for (const size_t every : {1, 2, 3, 4, 11}) {
    Random own{.draws = 1000};
    const std::vector<Checkpoint> kept = forward_keeping_few(layers, 0.8, every, own);
    const std::string what = "every = " + std::to_string(every);
    ASSERT_EQ(own.draws, 1011u) << what << ": the forward pass draws once per layer";
    ASSERT_EQ(kept.size(), (layers.size() + every - 1) / every) << what << ": the inputs that are kept";
    ASSERT_DOUBLE_EQ(backward_recomputing(layers, kept, 1), expected) << what << ": the gradient of the input";
  }
}

}  // namespace
}  // namespace trivet::exercise
