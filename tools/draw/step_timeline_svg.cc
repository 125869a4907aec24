#include <algorithm>
#include <fmt/format.h>
#include <set>

#include "base/scalar.h"
#include "base/svg.h"
#include "tools/draw/step_timeline.h"

namespace trivet {
namespace {

constexpr double kTop = 12, kHead = 40, kOp = 24, kLayer = 13, kLane = 17, kBar = 11, kGap = 22;
constexpr double kWidth = 1100, kRight = 1084, kWide = 6.6, kNarrow = 5.2;  // character widths at 12 and 9 pixels

// The classes of bars, and their meanings.
constexpr std::string_view kLegend =
    "queued: ready and queued behind other calls,F: forward,B: backward,I: backward input,W: backward weight,"
    "idle: the pass waits,layer: layer,optimizer: optimizer,tensor wait: tensor call waits for peers,tensor: tensor on "
    "the wire,context wait: context call waits for peers,context: context on the wire,"
    "pipeline wait: pipeline call waits for peers,pipeline: pipeline on the wire,data wait: data call waits for peers,"
    "data: data on the wire,rest: copying,exposed: exposed: on the wire while the rank computes nothing";

double milliseconds(int64_t ns) { return static_cast<double>(ns) / 1e6; }

std::string label_of(const TimelineLane& lane) {
  return shortened(lane.layer.empty() ? lane.name : lane.name + "  " + lane.layer, 34);
}

class TimelinePage {
 public:
  explicit TimelinePage(const StepTimeline& timeline) : timeline_(timeline) {
    for (const RankTimeline& rank : timeline.ranks)
      for (const TimelineLane& lane : rank.lanes)
        left_ = std::max(left_, 24 + kWide * static_cast<double>(label_of(lane).size()));
    scale_ = (kRight - left_) / length_;
    tick_ = round_step(length_, (kRight - left_) / 80);
  }

  std::string draw() {
    double y = kTop;
    for (const RankTimeline& rank : timeline_.ranks) y = draw_rank(rank, y) + kGap;
    return canvas_.finish(kWidth, draw_legend(y) + 10, fmt::format("timeline of step {}", timeline_.step));
  }

 private:
  double x_of(int64_t ns) const {
    const Interval& window = timeline_.window;
    return left_ + milliseconds(std::clamp(ns, window.begin, window.end) - window.begin) * scale_;
  }
  // Draws nothing if the interval is outside the window. name: drawn in the middle, if it fits.
  void draw_bar(const Interval& time, double y, double height, const std::string& classes, const std::string& title,
                const std::string& name = "") {
    const double from = x_of(time.begin), until = x_of(time.end);
    if (until <= from) return;
    canvas_.bar(from, y, std::max(until - from - 0.5, 0.7), height, classes.c_str(), title);
    drawn_.insert(classes);
    draw_name(time, y, height, name);
  }
  void draw_name(const Interval& time, double y, double height, const std::string& name) {
    const double from = x_of(time.begin), until = x_of(time.end);
    if (!name.empty() && until - from > kNarrow * static_cast<double>(name.size()) + 3)
      canvas_.text((from + until) / 2, y + height / 2 + 3, "small mid", name);
  }

  // Returns the y coordinate below the rank's rows.
  double draw_rank(const RankTimeline& rank, double top) {
    const double rows = top + kHead, lanes = rows + kOp + kLayer + 8;
    const double bottom = lanes + kLane * static_cast<double>(rank.lanes.size());
    for (int i = 0; tick_ * i <= length_; ++i) {
      const double x = left_ + tick_ * i * scale_;
      canvas_.line(x, rows - 3, x, bottom, i == 0 ? "axis" : "grid");
      canvas_.text(x, bottom + 14, "soft mid", fmt::format("{:g}", tick_ * i));
    }
    canvas_.text(left_ - 14, bottom + 14, "soft end", "ms");
    canvas_.text(left_, top + 13, "head", fmt::format("{}, step {}", rank.name, timeline_.step));
    canvas_.text(left_, top + 29, "soft", summary_of(rank));
    canvas_.text(left_ - 10, rows + 16, "end", "compute");
    for (const TraceSpan& op : rank.ops) {
      const std::string name =
          fmt::format("{}{}{}", op.name, op.microbatch, op.chunk > 0 ? fmt::format(".{}", op.chunk) : "");
      draw_bar(op.time, rows, kOp - 1, op.name, name);
      for (const Interval& wait : gaps(rank.computed, op.time))  // skips waits too narrow to draw to scale
        if (wait.length() > timeline_.window.length() / 1000) draw_bar(wait, rows, kOp - 1, "idle", name + " waits");
      draw_name(op.time, rows, kOp - 1, name);
    }
    for (const TraceSpan& span : rank.layers)
      draw_bar(span.time, rows + kOp, kLayer - 1, span.layer == "optimizer" ? "optimizer" : "layer", span.layer,
               span.layer.substr(span.layer.find(' ') + 1));
    canvas_.line(left_, lanes - 5, kRight, lanes - 5, "axis");
    double y = lanes;
    for (const TimelineLane& lane : rank.lanes) {
      canvas_.text(left_ - 10, y + 10, "end soft", label_of(lane));
      for (const TraceSpan& call : lane.calls) draw_call(rank, lane, call, y);
      y += kLane;
    }
    return bottom + 18;
  }

  void draw_call(const RankTimeline& rank, const TimelineLane& lane, const TraceSpan& call, double y) {
    const std::vector<Interval> exposed = timeline_.exposed(rank, call);
    const std::string title = describe(call, lane, length_of(exposed));
    draw_bar({call.ready_ns, call.time.begin}, y + kBar / 2 - 1, 2, "queued", title);
    if (call.wire.length() > 0)
      draw_bar({call.time.begin, std::min(call.wire.begin, call.time.end)}, y, kBar, lane.comm_class + " wait", title);
    draw_bar({std::max(call.time.begin, call.wire.end), call.time.end}, y + 3, kBar - 6, "rest", title);
    draw_bar(call.wire, y, kBar, lane.comm_class, title,
             call.microbatch >= 0 && call.bucket < 0 ? fmt::format("{}", call.microbatch) : "");
    for (const Interval& part : exposed)  // skips parts too narrow to draw to scale
      if (part.length() > timeline_.window.length() / 2000) draw_bar(part, y + kBar - 3, 4, "exposed", title);
  }

  std::string describe(const TraceSpan& call, const TimelineLane& lane, int64_t exposed) const {
    const auto at = [&](int64_t ns) { return milliseconds(ns - timeline_.window.begin); };
    std::string text = fmt::format("{} ({}, {})", call.name, lane.name, bytes_text(call.bytes));
    if (!call.layer.empty()) text += ", " + call.layer;
    if (call.microbatch >= 0) text += fmt::format(", micro-batch {}", call.microbatch);
    text += fmt::format("\nready {:.3f}, called {:.3f}, ", at(call.ready_ns), at(call.time.begin));
    const std::string done = fmt::format("done {:.3f} ms", at(call.time.end));
    if (call.wire.length() == 0) return text + done;
    const double rate = static_cast<double>(call.bytes) / static_cast<double>(call.wire.length());
    return text + fmt::format("matched {:.3f}, off the wire {:.3f}, {}\n{:.4g} GB/s, exposed {:.3f} ms",
                              at(call.wire.begin), at(call.wire.end), done, rate, milliseconds(exposed));
  }

  // Time during which several calls are exposed counts once.
  std::string summary_of(const RankTimeline& rank) const {
    std::vector<Interval> exposed;
    for (const TimelineLane& lane : rank.lanes)
      for (const TraceSpan& call : lane.calls)
        std::ranges::copy(timeline_.exposed(rank, call), std::back_inserter(exposed));
    return fmt::format("computes {:.2f} of {:.2f} ms, {:.2f} ms of communication exposed",
                       milliseconds(length_of(rank.computed)), length_, milliseconds(length_of(united(exposed))));
  }

  double draw_legend(double y) {
    double x = left_;
    for (const std::string_view line : split_words(kLegend)) {
      const std::string classes(line.substr(0, line.find(':'))), name(line.substr(classes.size() + 2));
      const double width = 38 + kWide * static_cast<double>(name.size());
      if (!drawn_.contains(classes)) continue;
      if (x > left_ && x + width > kWidth) x = left_, y += 18;
      const bool line_only = classes == "queued";
      canvas_.bar(x, y + (line_only ? 5 : 0), 18, line_only ? 2 : kBar, classes.c_str(), name);
      canvas_.text(x + 24, y + 9.5, "soft", name);
      x += width;
    }
    return y + kBar;
  }

  const StepTimeline& timeline_;
  const double length_ = milliseconds(timeline_.window.length());
  Canvas canvas_;
  std::set<std::string> drawn_;              // classes of bars
  double left_ = 80, scale_ = 1, tick_ = 1;  // pixels; pixels per millisecond; milliseconds between marks
};

}  // namespace

std::string render_svg(const StepTimeline& timeline) { return TimelinePage(timeline).draw(); }

}  // namespace trivet
