// The floors of docs/architecture.md: a source includes nothing from a floor above its own, and a tool includes other
// tools only if it may use them. (CMakeLists.txt links no others, but header-only use needs no linking.)
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/support/where.h"

namespace trivet {
namespace {

const std::vector<std::string> kFloors = {"base", "kernels", "parallel", "engine", "tools", "launch"};
const std::map<std::string, std::set<std::string>> kToolsBelow = {
    {"plan", {"draw"}}, {"explain", {"draw", "plan"}}, {"study", {"draw", "plan"}}};

size_t floor_of(const std::string& path) {
  const auto found = std::ranges::find(kFloors, path.substr(0, path.find('/')));
  return static_cast<size_t>(found - kFloors.begin());
}
std::string tool_of(const std::string& path) {  // "plan" of tools/plan/tape.h
  const size_t begin = path.find('/') + 1;
  return path.substr(begin, path.find('/', begin) - begin);
}

// The problem with the inclusion; empty if there is none.
std::string problem_of(const std::string& file, const std::string& included) {
  if (floor_of(included) == kFloors.size()) return {};  // on no floor, like <vector>
  if (floor_of(included) > floor_of(file)) return file + " includes " + included + ", of a floor above";
  const bool both = file.starts_with("tools/") && included.starts_with("tools/");
  if (!both || tool_of(file) == tool_of(included)) return {};
  const auto below = kToolsBelow.find(tool_of(file));
  const bool may = below != kToolsBelow.end() && below->second.contains(tool_of(included));
  return may ? "" : file + " includes " + included + ", of a tool that it may not use";
}

TEST(Fence, IncludesOnlyGoDown) {
  std::map<std::string, int> sources;  // by floor
  for (const std::string& floor : kFloors)
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source_path(floor))) {
      const std::string extension = entry.path().extension();
      if (!std::set<std::string>{".h", ".cc", ".cu", ".cuh"}.contains(extension)) continue;
      ++sources[floor];
      const std::string file = std::filesystem::relative(entry.path(), source_path("."));
      std::ifstream in(entry.path());
      constexpr std::string_view kInclude = "#include \"";
      for (std::string line; std::getline(in, line);)
        if (line.starts_with(kInclude)) {
          const std::string included = line.substr(kInclude.size(), line.rfind('"') - kInclude.size());
          EXPECT_EQ(problem_of(file, included), "");
        }
    }
  for (const std::string& floor : kFloors) EXPECT_GT(sources[floor], 10) << floor;
}

TEST(Fence, SeesWhatGoesUp) {
  EXPECT_NE(problem_of("engine/train/run.cc", "tools/plan/tape.h"), "");
  EXPECT_NE(problem_of("base/files.cc", "kernels/ops.h"), "");
  EXPECT_NE(problem_of("tools/plan/rows.cc", "tools/study/results.h"), "");
  EXPECT_NE(problem_of("tools/draw/render.h", "tools/plan/tape.h"), "");
  EXPECT_EQ(problem_of("tools/study/plan.cc", "tools/plan/tape.h"), "");
  EXPECT_EQ(problem_of("launch/plan.cc", "tools/plan/tape.h"), "");
}

}  // namespace
}  // namespace trivet
