#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <limits>

#include "base/check.h"
#include "base/svg.h"
#include "tools/draw/render.h"

namespace trivet {
namespace {

// ---- colours

struct Rgb {
  double r, g, b;
};
// The colours of an op kind, from the first chunk to the last.
struct Ramp {
  Rgb light, dark;
  const char* name;
};
constexpr std::array<Ramp, 4> kRamps{{
    {{176, 205, 250}, {34, 84, 170}, "forward"},
    {{180, 226, 170}, {34, 122, 60}, "backward"},
    {{150, 224, 216}, {12, 112, 118}, "backward input half"},
    {{214, 222, 203}, {102, 117, 92}, "backward weight half"},
}};

Rgb color_of(OpKind kind, int chunk, int chunks) {
  const Ramp& ramp = kRamps[static_cast<size_t>(kind)];
  const double at = chunks == 1 ? 0.2 : static_cast<double>(chunk) / (chunks - 1);
  const auto mix = [&](double from, double to) { return from + at * (to - from); };
  return {mix(ramp.light.r, ramp.dark.r), mix(ramp.light.g, ramp.dark.g), mix(ramp.light.b, ramp.dark.b)};
}
std::string hex(const Rgb& c) {
  const auto byte = [](double x) { return static_cast<int>(std::lround(x)); };
  return fmt::format("#{:02x}{:02x}{:02x}", byte(c.r), byte(c.g), byte(c.b));
}
bool wants_white_text(const Rgb& c) { return 0.299 * c.r + 0.587 * c.g + 0.114 * c.b < 140; }

constexpr const char* kActivations = "#3f7fe0";
constexpr const char* kGradients = "#3a9b52";

// ---- the page

constexpr double kLeft = 66, kRight = 80, kRow = 26, kGap = 5, kLane = 7, kHead = 44, kCharacter = 0.58;

class Page : SvgBody {
 public:
  Page(std::span<const Timeline> timelines, const SvgOptions& options) : timelines_(timelines), options_(options) {
    double narrowest = std::numeric_limits<double>::infinity();  // the shortest op
    for (const Timeline& timeline : timelines) {
      if (timeline.unit != timelines[0].unit)
        throw ConfigError(
            fmt::format("timelines in '{}' and '{}' cannot share an axis", timelines[0].unit, timeline.unit));
      double first = std::numeric_limits<double>::infinity();
      for (const OpSpan& span : timeline.ops) first = std::min(first, span.start);
      first_.push_back(timeline.ops.empty() ? 0 : first);
      chunks_ = std::max(chunks_, timeline.v);
      for (const OpSpan& span : timeline.ops) {
        length_ = std::max(length_, span.end - first_.back());
        used_[static_cast<size_t>(span.op.kind)] = true;
        digits_ = std::max(digits_, static_cast<double>(fmt::formatted_size("{}", span.op.microbatch)));
        if (span.end > span.start) narrowest = std::min(narrowest, span.end - span.start);
      }
    }
    if (length_ <= 0) throw ConfigError("there is no op to draw");
    const double wanted = options.width > 0 ? options.width - kLeft - kRight
                                            : std::clamp(length_ / narrowest * 12 * digits_, 760., 2200.);
    scale_ = std::max(200., wanted) / length_;
    tick_ = round_step(length_, length_ * scale_ / 70);
    row_ = kRow + kGap + (options.transfers ? kLane : 0);
  }

  std::string draw() {
    double y = 8;
    for (size_t i = 0; i < timelines_.size(); ++i) y = timeline(timelines_[i], first_[i], y) + 18;
    y = axis(y - 16);
    y = legend(y);
    const double width = kLeft + length_ * scale_ + kRight;
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
        "{1:.0f}\" "
        "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222\">\n<style>{2}</style>\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{3}</svg>\n",
        width, y + 8, style(), body_);
  }

 private:
  double x_of(double time) const { return kLeft + time * scale_; }

  // A class per op kind and chunk, named by the kind's letter: F0, F1, …; it colours the cell and the text in it.
  std::string style() const {
    std::string css = "rect.op{stroke:#fff;stroke-width:.8}text.cell{text-anchor:middle}";
    for (size_t kind = 0; kind < used_.size(); ++kind)
      for (int chunk = 0; used_[kind] && chunk < chunks_; ++chunk) {
        const Rgb color = color_of(static_cast<OpKind>(kind), chunk, chunks_);
        css += fmt::format("rect.{0}{1}{{fill:{2}}}text.{0}{1}{{fill:{3}}}", letter_of(static_cast<OpKind>(kind)),
                           chunk, hex(color), wants_white_text(color) ? "#fff" : "#1a1a1a");
      }
    return css;
  }

  // Returns the y coordinate below the last row.
  double timeline(const Timeline& timeline, double first, double top) {
    put("<text x=\"{}\" y=\"{:.1f}\" font-size=\"15\" font-weight=\"bold\">{}</text>", kLeft, top + 15,
        escaped(timeline.title));
    put("<text x=\"{}\" y=\"{:.1f}\" fill=\"#555\">{}</text>", kLeft, top + 32, caption(timeline));
    const double rows = top + kHead;
    const double right = x_of(length_);
    put("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"10\" fill=\"#555\">{}</text>", right + 9, rows - 5,
        split(timeline) ? "slots + stash" : "peak slots");
    const std::vector<Peak> peaks = peaks_of(programs_of(timeline), timeline.v);
    const double end = bubble_of(timeline).makespan;
    for (int rank = 0; rank < timeline.p; ++rank) {
      const double y = rows + rank * row_;
      put("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">rank {}</text>", kLeft - 8, y + kRow / 2 + 4, rank);
      put("<rect x=\"{}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"#fff\" stroke=\"#c9c9c9\" "
          "stroke-width=\".8\"/>",
          kLeft, y, end * scale_, kRow);
      const Peak& peak = peaks[static_cast<size_t>(rank)];
      put("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", right + 9, y + kRow / 2 + 4,
          split(timeline) ? fmt::format("{} + {}", peak.slots, peak.stashes) : fmt::format("{}", peak.slots));
    }
    for (double time = tick_; time < end; time += tick_)
      put("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#e4e4e4\" stroke-width=\".8\"/>",
          x_of(time), rows, rows + timeline.p * row_ - row_ + kRow);
    if (options_.transfers) transfers(timeline, first, rows);
    for (const OpSpan& span : timeline.ops) cell(span, first, rows + span.rank * row_);
    return rows + timeline.p * row_;
  }

  void cell(const OpSpan& span, double first, double y) {
    const double x = x_of(span.start - first), width = (span.end - span.start) * scale_;
    const std::string kind = fmt::format("{}{}", letter_of(span.op.kind), span.op.chunk);
    put("<rect class=\"op {}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\"/>", kind, x, y, width, kRow);
    const double font = std::min(13., (width - 1) / (kCharacter * digits_));
    if (font < 4.5) return;  // too small to read
    put("<text class=\"cell {}\" x=\"{:.2f}\" y=\"{:.1f}\" font-size=\"{:.1f}\">{}</text>", kind, x + width / 2,
        y + kRow / 2 + font * 0.36, font, span.op.microbatch);
  }

  // Activations in the upper half of the lane, gradients in the lower; darker where messages overlap.
  void transfers(const Timeline& timeline, double first, double rows) {
    for (const TransferSpan& span : timeline.transfers) {
      const bool activation = span.channel.payload == Payload::activation;
      const double y = rows + span.channel.from * row_ + kRow + 1 + (activation ? 0 : 3);
      put("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"3\" fill=\"{}\" fill-opacity=\".7\"/>",
          x_of(span.start - first), y, std::max(0.6, (span.end - span.start) * scale_),
          activation ? kActivations : kGradients);
    }
  }

  static bool split(const Timeline& timeline) {
    return std::any_of(timeline.ops.begin(), timeline.ops.end(),
                       [](const OpSpan& s) { return s.op.kind == OpKind::backward_input; });
  }

  static std::string caption(const Timeline& timeline) {
    const Bubble bubble = bubble_of(timeline);
    std::string text = fmt::format("{}; makespan {:g}{}{}", bubble_text(timeline), bubble.makespan,
                                   timeline.unit.empty() ? "" : " ", timeline.unit);
    if (timeline.v > 1) text += "; a slot holds one micro-batch of one chunk";
    return text;
  }

  double axis(double y) {
    put("<line x1=\"{0}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\" stroke=\"#888\"/>", kLeft, y, x_of(length_));
    for (int i = 0; i * tick_ <= length_ * (1 + 1e-9); ++i) {
      const double x = x_of(i * tick_);
      put("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#888\"/>", x, y, y + 4);
      put("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"11\" fill=\"#555\" text-anchor=\"middle\">{:g}</text>", x,
          y + 16, i * tick_);
    }
    put("<text x=\"{}\" y=\"{:.1f}\" font-size=\"11\" fill=\"#555\" text-anchor=\"end\">time{}</text>", kLeft - 8,
        y + 16, timelines_[0].unit.empty() ? "" : " / " + timelines_[0].unit);
    return y + 22;
  }

  // Entries from left to right, wrapped at the edge of the page.
  double legend(double y) {
    double x = kLeft;
    const auto entry = [&](double swatches, const std::string& text, auto&& draw_swatches) {
      const double width = swatches + 5 + static_cast<double>(text.size()) * 11 * 0.54;
      if (x > kLeft && x + width > x_of(length_) + kRight) {
        x = kLeft;
        y += 19;
      }
      draw_swatches();
      put("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"11\">{}</text>", x + swatches + 5, y + 15, text);
      x += width + 14;
    };
    for (size_t kind = 0; kind < used_.size(); ++kind) {
      if (!used_[kind]) continue;
      const char* letter = letter_of(static_cast<OpKind>(kind));
      entry(14 * chunks_, fmt::format("{} {}", letter, kRamps[kind].name), [&] {
        for (int chunk = 0; chunk < chunks_; ++chunk)
          put("<rect class=\"op {}{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"14\"/>", letter, chunk,
              x + 14 * chunk, y + 4);
      });
    }
    entry(14, chunks_ > 1 ? fmt::format("idle; shades: chunk 0 to {}", chunks_ - 1) : "idle", [&] {
      put("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"13\" height=\"13\" fill=\"#fff\" stroke=\"#c9c9c9\"/>", x, y + 4.5);
    });
    if (options_.transfers)
      for (const auto& [color, text] : {std::pair{kActivations, "activations sent"}, {kGradients, "gradients sent"}})
        entry(16, text, [&, color = color] {
          put("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"16\" height=\"3\" fill=\"{}\" fill-opacity=\".7\"/>", x, y + 9.5,
              color);
        });
    return y + 20;
  }

  std::span<const Timeline> timelines_;
  SvgOptions options_;
  std::vector<double> first_;  // the start of each timeline's first op, which is 0 in the picture
  double length_ = 0;          // of the longest timeline
  double scale_ = 1;           // pixels per unit of time
  double tick_ = 1;            // between two ticks of the axis
  double row_ = 0;             // between the rows of two ranks
  double digits_ = 1;          // of the largest micro-batch number, which sets the font size of all numbers
  int chunks_ = 1;
  std::array<bool, 4> used_{};  // op kinds
};

}  // namespace

std::string render_svg(std::span<const Timeline> timelines, const SvgOptions& options) {
  if (timelines.empty()) throw ConfigError("there is no timeline to draw");
  return Page(timelines, options).draw();
}

}  // namespace trivet
