// Scale curves: where they begin, what grows, and where the knee is.
#include "tools/plan/scale.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/plan/plan_support.h"

namespace trivet::test {
namespace {

ScaleCurve curve_of(Scaling scaling, const std::vector<int>& ranks, const std::vector<std::string>& system = {}) {
  return scale_curve(tiny_run({"batch.micro_batch_size=1"}), ranks, h100(system), scaling);
}

TEST(Scale, WeakGrowsTheBatchAndStrongKeepsIt) {
  for (const Scaling scaling : {Scaling::weak, Scaling::strong}) {
    const ScaleCurve curve = curve_of(scaling, {2, 4, 8});
    ASSERT_EQ(curve.points.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      const ScalePoint& point = curve.points[i];
      const int64_t batch = scaling == Scaling::weak ? 8 << i : 8;
      EXPECT_EQ(point.ranks, 2 << i);
      EXPECT_EQ(point.refusal, "");
      EXPECT_EQ(point.global_batch, batch);
      const RunPlan alone =
          plan_run(tiny_run({"batch.micro_batch_size=1", fmt::format("batch.global_batch_size={}", batch)}),
                   point.ranks, h100());
      EXPECT_EQ(point.prediction.step.step_seconds, alone.prediction.step.step_seconds);
    }
    EXPECT_EQ(curve.points[0].efficiency, 1);
  }
}

TEST(Scale, APointThatIsIllegalIsTold) {
  const ScaleCurve curve = curve_of(Scaling::strong, {1, 3, 4});
  EXPECT_NE(curve.points[1].refusal.find("is not divisible by micro_batch_size"), std::string::npos);
  EXPECT_GT(curve.points[2].efficiency, 0);
  EXPECT_EQ(json_of(curve)["points"][1].contains("step_seconds"), false);
  const ScaleCurve weak = curve_of(Scaling::weak, {3, 4});  // 32 / 3
  EXPECT_NE(weak.points[1].refusal.find("is fractional"), std::string::npos);
  EXPECT_EQ(knee_text(weak), "no point is valid");
}

// A network with almost no bandwidth makes the second node useless.
TEST(Scale, TheKneeIsBeforeTheFirstPointThatIsInefficient) {
  const ScaleCurve curve = curve_of(Scaling::weak, {2, 4, 8}, {"gpus_per_node=4", "network_gb_per_s=0.1"});
  ASSERT_TRUE(curve.knee && curve.beyond);
  EXPECT_LT(*curve.knee, *curve.beyond);
  EXPECT_GE(curve.points[*curve.knee].efficiency, ScaleCurve::kKnee);
  EXPECT_LT(curve.points[*curve.beyond].efficiency, ScaleCurve::kKnee);
  const std::string text = knee_text(curve);
  EXPECT_NE(text.find(fmt::format("knee at {} ranks", curve.points[*curve.knee].ranks)), std::string::npos) << text;
  EXPECT_NE(text.find("exposed data communication"), std::string::npos) << text;
  EXPECT_EQ(json_of(curve)["knee_ranks"], curve.points[*curve.knee].ranks);
}

// Behind a dip, efficiency may rise again: a knee lies before the dip.
TEST(Scale, TheKneeIsBeforeADip) {
  ScaleCurve curve;
  for (const double per_rank : {100., 95., 70., 92.}) {
    ScalePoint& point = curve.points.emplace_back();
    point.ranks = 1 << curve.points.size();
    point.prediction.step.tokens_per_second = per_rank * point.ranks;
  }
  find_knee(curve);
  EXPECT_EQ(curve.first, 0u);
  EXPECT_EQ(curve.knee, 1u);
  EXPECT_EQ(curve.beyond, 2u);
  EXPECT_DOUBLE_EQ(curve.points[3].efficiency, 0.92);
}

TEST(Scale, ThePictureHasBothCurves) {
  const std::string svg = picture_of({curve_of(Scaling::weak, {1, 2, 4}), curve_of(Scaling::strong, {1, 2, 3})});
  for (const char* part : {"line s0", "line s1", "weak, 4 ranks", "strong, 2 ranks", "weak: "})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  EXPECT_EQ(svg.find("strong, 3 ranks"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace trivet::test
