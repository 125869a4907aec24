// The studies in configs/studies/: each is read, and all its points are configurations of the run it is based on.
#include <filesystem>
#include <set>

#include "engine/config/fields.h"
#include "tests/support/where.h"
#include "tests/tools/study/study_text.h"
#include "tools/study/study.h"
#include "tools/study/study_file.h"

namespace trivet {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(source_path("configs/studies"));

struct Shipped {
  const char* file;
  size_t points;
  size_t numbers = 1;  // groups of points that must have the same losses
};
class ShippedStudy : public testing::TestWithParam<Shipped> {};

TEST_P(ShippedStudy, HasPointsThatAllCanRun) {
  // given: a vocabulary in place of the dataset
  Study study = load_study((kFolder / GetParam().file).string());
  study.set.push_back({"data.path", "/nowhere"});
  study.set.push_back({"model.vocab_size", "4096"});

  // when
  const Plan plan = make_plan(study);

  // then
  EXPECT_EQ(study.name, std::filesystem::path(GetParam().file).stem());
  EXPECT_EQ(plan.points.size(), GetParam().points);
  EXPECT_TRUE(plan.dropped.empty()) << plan.dropped[0].reason;
  EXPECT_EQ(plan.baseline, std::optional<size_t>(0));
  std::set<std::string> groups;
  for (const Point& point : plan.points) groups.insert(point.numbers);
  EXPECT_EQ(groups.size(), GetParam().numbers) << "overlap and links change no numbers";
}

INSTANTIATE_TEST_SUITE_P(All, ShippedStudy,
                         testing::Values(Shipped{"aa.yaml", 10}, Shipped{"cp_overlap.yaml", 16, 4},
                                         Shipped{"dp_overlap.yaml", 24}, Shipped{"pp_interleaving.yaml", 9, 3},
                                         Shipped{"pp_latency.yaml", 24}, Shipped{"scaling.yaml", 15, 15},
                                         Shipped{"shared_port.yaml", 8}, Shipped{"tp_overlap.yaml", 8}),
                         [](const auto& info) { return std::filesystem::path(info.param.file).stem().string(); });

TEST(ShippedStudies, AreAllTested) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) files += entry.path().extension() == ".yaml";
  EXPECT_EQ(files, 8);
}

}  // namespace
}  // namespace trivet
