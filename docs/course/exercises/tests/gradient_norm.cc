#include "docs/course/exercises/gradient_norm.h"

#include "docs/course/exercises/support/testing.h"

namespace trivet::exercise {
namespace {

TEST(gradient_norm, is_that_of_one_rank) {
  for (const int t : {1, 2, 3}) {
    const std::vector<float> cut = numbers(12, 1), norm = numbers(5, 2), also_cut = numbers(6, 3);
    double squares = 0;
    for (const auto* gradient : {&cut, &norm, &also_cut})
      for (const float x : *gradient) squares += x * x;
    on_ranks(t, [&](Communicator& tensor, Stream& stream) {
      const auto part = [&](const std::vector<float>& whole) {
        const size_t length = whole.size() / static_cast<size_t>(t);
        return std::span(whole).subspan(static_cast<size_t>(tensor.rank()) * length, length);
      };
      const std::vector<WeightGradient> gradients{{part(cut), false}, {norm, true}, {part(also_cut), false}};
      expect_near(std::vector{gradient_norm(tensor, gradients, stream)}, std::vector{std::sqrt(squares)}, 1e-5,
                  fmt::format("the norm on rank {} of {}, whole gradients being 5 of 23 numbers", tensor.rank(), t));
    });
  }
}

}  // namespace
}  // namespace trivet::exercise
