// Configuration sections that tools add.
#include <algorithm>
#include <gtest/gtest.h>
#include <string>

#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "tools/mlperf/section.h"
#include "tools/plan/section.h"

namespace trivet {
namespace {

template <class Values>
void expect_a_field_for_each_member(const std::string& section) {
  Config config;
  const auto* const base = reinterpret_cast<const char*>(&config.tools.of<Values>());
  size_t end = 0;
  for (const Field& field : fields()) {
    if (field.section() != section) continue;
    while (end % field.alignment != 0) ++end;
    EXPECT_EQ(static_cast<const char*>(field.at(config)) - base, static_cast<std::ptrdiff_t>(end)) << field.name;
    end += field.size;
  }
  while (end % alignof(Values) != 0) ++end;
  EXPECT_EQ(end, sizeof(Values)) << section;
}

TEST(ToolSections, HaveAFieldForEachMember) {
  expect_a_field_for_each_member<MlperfConfig>("mlperf");
  expect_a_field_for_each_member<PlanConfig>("plan");
}

// Copies share nothing, like those of the other sections.
TEST(ToolSections, AreValuesOfAConfiguration) {
  Config config;
  config.tools.of<PlanConfig>().ops_per_layer = 7;
  Config copy = config;
  copy.tools.of<PlanConfig>().ops_per_layer = 8;
  EXPECT_EQ(plan_of(config).ops_per_layer, 7);
  EXPECT_EQ(plan_of(copy).ops_per_layer, 8);
}

// A program without the tool can then read the file.
TEST(ToolSections, AreWrittenWhereTheyHaveAValue) {
  Config config;
  EXPECT_EQ(to_yaml(config).find("mlperf:"), std::string::npos);
  EXPECT_EQ(to_yaml(config).find("plan:"), std::string::npos);
  config.tools.of<MlperfConfig>().warmup_steps = 3;
  const std::string text = to_yaml(config);
  EXPECT_NE(text.find("\nmlperf:\n  benchmark: none\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  warmup_steps: 3\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("plan:"), std::string::npos);
}

TEST(ToolSections, DirectARunByTheirKey) {
  Config config;
  EXPECT_EQ(directing_section(config), nullptr);
  EXPECT_FALSE(evaluates(config));
  config.tools.of<MlperfConfig>().benchmark = MlperfBenchmark::tiny;
  ASSERT_NE(directing_section(config), nullptr);
  EXPECT_EQ(directing_section(config)->directing_key, "mlperf.benchmark");
  EXPECT_TRUE(evaluates(config));
}

}  // namespace
}  // namespace trivet
