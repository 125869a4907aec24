// Render: pictures of simulated and measured timelines, as text for a terminal or SVG.
//
// Colours: forward blue, backward green, backward_input teal, backward_weight grey-green, idle white; shades from light
// to dark distinguish chunks; the number in a cell is the micro-batch.
#pragma once

#include <span>
#include <string>

#include "parallel/pipeline/timeline.h"

namespace trivet {

struct TextOptions {
  int columns = 160;    // of the terminal; a long timeline is scaled to fit
  bool colors = false;  // ANSI colours
};
// One line per rank, and an axis. "|F3.1 " is an op, dots are idle time. Narrow cells drop the bar ("F3.1"), then
// shorten the label to "|f3" (lower case: an odd chunk) or "|f".
std::string render_text(const Timeline& timeline, const TextOptions& options = {});

struct SvgOptions {
  int width = 0;           // pixels; 0: as wide as the numbers in the cells need, within reason
  bool transfers = false;  // a lane under each rank with the messages it sends
};
// Draws the timelines stacked on a common scale, with rank labels, peak slots, both bubble ratios, axis and legend.
// Throws ConfigError if `timelines` is empty or their units differ.
std::string render_svg(std::span<const Timeline> timelines, const SvgOptions& options = {});

// "bubble 37.5 % of ideal (makespan - busy over busy), 27.3 % of total": for captions.
std::string bubble_text(const Timeline& timeline);

}  // namespace trivet
