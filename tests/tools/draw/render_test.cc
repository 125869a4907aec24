#include "tools/draw/render.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <regex>

#include "base/check.h"
#include "parallel/pipeline/simulate.h"
#include "tests/parallel/pipeline/says.h"

namespace trivet {
namespace {

Timeline timeline_of(const std::string& kind, int p, int m, const Costs& costs = {}) {
  Timeline timeline = simulate(make_schedule({.kind = kind, .p = p, .m = m}), costs);
  timeline.title = kind;
  return timeline;
}

size_t count(const std::string& text, std::string_view part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

// ---- text

TEST(RenderText, IsToScaleWithIdleDots) {
  EXPECT_EQ(render_text(timeline_of("1f1b", 2, 2), {.columns = 80}),
            "rank 0 |F0|F1......|B0   ...|B1   |\n"
            "rank 1 ...|F0|B0   |F1|B1   ......|\n"
            "time   ^0                          \n");
}

TEST(RenderText, LongTimelinesAreSqueezedIntoTheLine) {
  for (const int columns : {40, 80, 200}) {
    const std::string text = render_text(timeline_of("zb-v", 4, 64), {.columns = columns});
    size_t from = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const size_t end = text.find('\n', from);
      EXPECT_LE(end - from, static_cast<size_t>(columns));
      EXPECT_GE(end - from, static_cast<size_t>(columns) - 3);
      from = end + 1;
    }
  }
}

TEST(RenderText, NarrowCellsKeepTheMicroBatchAndShowOddChunksSmall) {
  const std::string text = render_text(timeline_of("interleaved", 2, 2), {.columns = 58});
  EXPECT_TRUE(says(text, {"|F0|F1|f0|f1......|B0.1", "|B1.0"}));
}

// 33 time units in 80 columns: two columns per unit, without bars where they would displace the number.
TEST(RenderText, SqueezedCellsStayInLine) {
  const std::string text = render_text(timeline_of("1f1b", 4, 8), {.columns = 80});
  EXPECT_TRUE(says(text, {"rank 0 F0F1F2F3............|B0 F4|B1 F5|B2 F6|B3 F7|B4 ..|B5 ..|B6 ..|B7 |\n",
                          "rank 3 ......F0|B0 F1|B1 F2|B2 F3|B3 F4|B4 F5|B5 F6|B6 F7|B7 ............|\n"}));
}

TEST(RenderText, ColorsChangeNoCharacter) {
  const Timeline timeline = timeline_of("zb-v", 3, 6);
  const std::string colored = render_text(timeline, {.columns = 120, .colors = true});
  EXPECT_NE(colored.find("\x1b["), std::string::npos);
  EXPECT_EQ(std::regex_replace(colored, std::regex("\x1b\\[[0-9;]*m"), ""), render_text(timeline, {.columns = 120}));
}

TEST(RenderText, NothingGivesNothing) { EXPECT_EQ(render_text(Timeline{}), ""); }

// ---- svg

TEST(RenderSvg, EveryOpIsACellOfItsKindAndChunk) {
  const Timeline timeline = timeline_of("zb-v", 3, 5);
  const std::string svg = render_svg({&timeline, 1});
  // One cell per op, and one swatch for each kind and chunk.
  for (const char* kind : {"F0", "F1", "I0", "I1", "W0", "W1"})
    EXPECT_EQ(count(svg, std::string("<rect class=\"op ") + kind + '"'), 3u * 5 + 1) << kind;
  EXPECT_EQ(count(svg, "<rect class=\"op B"), 0u);
  EXPECT_EQ(count(svg, "<text class=\"cell"), timeline.ops.size());
  EXPECT_TRUE(says(svg, {"rank 2", "slots + stash", bubble_text(timeline)}));
}

TEST(RenderSvg, CellsAreToScale) {
  const Timeline timeline = timeline_of("1f1b", 2, 2, {.stages = {{1, 1, 0.5, 0}}});
  const std::string svg = render_svg({&timeline, 1}, {.width = 1000});
  std::map<std::string, std::vector<std::pair<double, double>>> cells;  // x and width by class, in time order
  const std::regex cell("<rect class=\"op (..)\" x=\"([0-9.]+)\" y=\"[0-9.]+\" width=\"([0-9.]+)\" height=\"26\"");
  for (std::sregex_iterator at(svg.begin(), svg.end(), cell), end; at != end; ++at)
    cells[(*at)[1]].emplace_back(std::stod((*at)[2]), std::stod((*at)[3]));
  ASSERT_EQ(cells["F0"].size(), 4u);
  ASSERT_EQ(cells["B0"].size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(cells["B0"][i].second, 1.5 * cells["F0"][i].second, 0.02);
  // The second F of rank 0 starts where its first ends.
  EXPECT_NEAR(cells["F0"][0].first + cells["F0"][0].second, cells["F0"][1].first, 0.02);
}

TEST(RenderSvg, TwoTimelinesShareOneScale) {
  Timeline simulated = timeline_of("1f1b", 2, 3), measured = simulated;
  measured.title = "measured <on 2 & more>";
  for (OpSpan& span : measured.ops) {
    span.start = 100 + span.start * 1.5;  // its own clock: pictures start at 0
    span.end = 100 + span.end * 1.5;
  }
  const std::string svg = render_svg(std::vector{simulated, measured});
  EXPECT_TRUE(says(svg, {">1f1b<", "measured &lt;on 2 &amp; more&gt;"}));
  EXPECT_EQ(count(svg, "<text class=\"cell"), 2 * simulated.ops.size());
  measured.unit = "ms";
  EXPECT_THROW(render_svg(std::vector{simulated, measured}), ConfigError);
}

TEST(RenderSvg, TransfersAreDrawnOnRequest) {
  const Timeline timeline = timeline_of("1f1b", 3, 4, {.latency = 0.5});
  EXPECT_EQ(count(render_svg({&timeline, 1}), "fill-opacity"), 0u);
  EXPECT_EQ(count(render_svg({&timeline, 1}, {.transfers = true}), "fill-opacity"), timeline.transfers.size() + 2);
}

TEST(RenderSvg, AnEmptyPictureIsRefused) {
  EXPECT_THROW(render_svg({}), ConfigError);
  EXPECT_THROW(render_svg(std::vector{Timeline{}}), ConfigError);
}

}  // namespace
}  // namespace trivet
