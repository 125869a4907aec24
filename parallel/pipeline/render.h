// Render: pictures of timelines, as text for a terminal, as SVG for a page, as JSON for Perfetto.
//
// All take Timelines, so simulated and measured steps look alike, and two of them can stand in one picture.
// Colours: forward blue, backward green, backward_input teal, backward_weight grey-green, idle white; the chunk by
// shade, light to dark; the number in a cell is the micro-batch.
#pragma once

#include <span>
#include <string>

#include "parallel/pipeline/timeline.h"

namespace trivet {

struct TextOptions {
  int columns = 160;    // of the terminal; a long timeline is squeezed into them
  bool colors = false;  // ANSI colours
};
// One line a rank and an axis. "|F3.1 " is an op, dots are idle time. In narrow cells "F3.1" becomes "f3" (a small
// letter: an odd chunk) or "f".
std::string render_text(const Timeline& timeline, const TextOptions& options = {});

struct SvgOptions {
  int width = 0;           // pixels; 0: as wide as the numbers in the cells need, within reason
  bool transfers = false;  // a lane under each rank with the messages it sends
};
// One below the other on one scale, with rank labels, peak slots, bubble both ways, axis and legend. REQUIRES: at least
// one timeline, all in the same unit; throws ConfigError otherwise.
std::string render_svg(std::span<const Timeline> timelines, const SvgOptions& options = {});

// Trace events that ui.perfetto.dev and chrome://tracing open: a process a rank, one group of processes a timeline;
// ops as slices with arrows along the messages, transfers as asynchronous slices, slots in use as a counter. Times
// without a unit are shown as milliseconds.
std::string render_trace(std::span<const Timeline> timelines);

// "bubble 37.5 % of ideal (makespan - busy over busy), 27.3 % of total": for captions.
std::string bubble_text(const Timeline& timeline);

}  // namespace trivet
