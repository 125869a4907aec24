#include "docs/course/exercises/philox_dropout.h"

#include "docs/course/exercises/support/testing.h"
#include "kernels/ops.h"

namespace trivet::exercise {
namespace {

TEST(philox_dropout, has_the_engines_mask_in_every_cut) {
  const int64_t s = 11, h = 13;
  const float p = 0.3f;
  std::vector<float> ones(static_cast<size_t>(s * h), 1), expected(ones.size());
  int64_t first_sample = 0;
  const RankStreams rank;
  const auto rows = [&](std::vector<float>& x) { return tensor_of(x).view({s, 1, h}); };
  create_cpu_ops(1)->run(op::DropoutBackward{.dout = rows(ones),
                                             .dropout = {.probability = p,
                                                         .seed = 42,
                                                         .site = 7,
                                                         .first_sample = Tensor{&first_sample, DType::i64, {1}},
                                                         .seq_length = s},
                                             .dx = rows(expected)},
                         *rank.stream);
  for (const size_t parts : {1, 2, 3, 5}) {
    std::vector<float> found = ones;
    for (size_t part = 0; part < parts; ++part) {
      const size_t begin = found.size() * part / parts, end = found.size() * (part + 1) / parts;
      philox_dropout(std::span(found).subspan(begin, end - begin), begin, p, 42, 7);
    }
    expect_near(found, expected, 1e-6, "the mask, cut into " + std::to_string(parts) + " parts");
  }
}

}  // namespace
}  // namespace trivet::exercise
