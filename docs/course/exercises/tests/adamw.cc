#include "docs/course/exercises/adamw.h"

#include "docs/course/exercises/support/testing.h"
#include "kernels/ops.h"

namespace trivet::exercise {
namespace {

constexpr AdamWOptions kOptions{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

TEST(adamw, moves_each_weight_by_lr_in_the_first_step) {
  std::vector<double> weights{1, -2, 3}, m(3), v(3);
  adamw(weights, std::vector<double>{1e-3, -5, 700}, m, v, 1, kOptions);
  // Whatever the size of a gradient, m^ / sqrt(v^) is its sign; the decay takes lr * weight_decay of the weight.
  expect_near(weights, std::vector<double>{0.989, -1.988, 2.987}, 1e-6, "weights after step 1");
}

TEST(adamw, is_the_engines_over_ten_steps) {
  const int64_t n = 37;
  std::vector<float> w = numbers(n, 1), engine_m(37), engine_v(37), scale{1};
  std::vector<double> weights(w.begin(), w.end()), m(37), v(37);
  const auto ops = create_cpu_ops(1);
  const RankStreams rank;
  for (int64_t step = 1; step <= 10; ++step) {
    std::vector<float> g = numbers(n, static_cast<uint64_t>(step) + 1);
    adamw(weights, std::vector<double>(g.begin(), g.end()), m, v, step, kOptions);
    op::AdamWStep engine{
        .shards = {{.weight = tensor_of(w), .grad = tensor_of(g), .m = tensor_of(engine_m), .v = tensor_of(engine_v)}},
        .grad_scale = tensor_of(scale),
        .how = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, step}};
    ops->run(engine, *rank.stream);
    expect_near(weights, w, 1e-5, "weights after step " + std::to_string(step));
  }
}

}  // namespace
}  // namespace trivet::exercise
