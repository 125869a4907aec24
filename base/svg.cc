#include "base/svg.h"

#include <algorithm>
#include <cmath>

namespace trivet {
namespace {

struct Palette {
  const char *ink, *soft, *grid, *axis, *bar, *base, *best, *tensor, *pipeline, *data, *rest, *paper;
  const char *forward, *backward, *backward_input, *backward_weight, *layer, *optimizer, *exposed;
};
constexpr Palette kLight{"#1d2329", "#5b6670", "#e3e7ea", "#9aa4ad", "#7d9cc0", "#aab3bb", "#1f7a5c",
                         "#3b6fb6", "#d98324", "#8a5bb5", "#dfe4e8", "#ffffff", "#a9c6f0", "#a8d69c",
                         "#96dad2", "#d0dac2", "#c9d1d8", "#e8d28c", "#d8342c"};
constexpr Palette kDark{"#e6eaed", "#9aa6b0", "#2c343b", "#65717b", "#5c7fa8", "#6a757f", "#3fb28a",
                        "#6a9be0", "#eba04c", "#b48be0", "#3a444c", "#14181b", "#34599a", "#37713f",
                        "#25766f", "#5d6b50", "#4a555e", "#7d6a2a", "#ff6f61"};

// Colours written out, not CSS variables: pictures are also read by programs that know only the simpler rules.
std::string colors(const Palette& p) {
  std::string css;
  const auto rule = [&](std::string_view classes, std::string_view property, const char* color) {
    css += fmt::format(".plot {}{{{}:{}}}", classes, property, color);
  };
  rule("text", "fill", p.ink), rule(".soft", "fill", p.soft), rule(".paper", "fill", p.paper);
  rule(".grid", "stroke", p.grid), rule(".axis", "stroke", p.axis), rule(".one", "stroke", p.ink);
  rule(".whisker", "stroke", p.ink), rule(".line", "stroke", p.bar);
  rule(".dot", "fill", p.bar), rule(".dot.base", "fill", p.base), rule(".bar", "fill", p.bar);
  rule(".bar.base", "fill", p.base), rule(".bar.best", "fill", p.best), rule(".tensor", "fill", p.tensor);
  rule(".pipeline", "fill", p.pipeline), rule(".data", "fill", p.data), rule(".rest,.plot .idle", "fill", p.rest);
  rule(".F", "fill", p.forward), rule(".B", "fill", p.backward), rule(".I", "fill", p.backward_input);
  rule(".W", "fill", p.backward_weight), rule(".layer", "fill", p.layer), rule(".optimizer", "fill", p.optimizer);
  rule(".exposed", "fill", p.exposed), rule(".queued", "fill", p.axis);
  const char* const series[] = {p.tensor, p.pipeline, p.data, p.best, p.bar, p.base};  // of curves: s0 to s5
  for (size_t i = 0; i < std::size(series); ++i)
    rule(fmt::format(".line.s{}", i), "stroke", series[i]), rule(fmt::format(".dot.s{}", i), "fill", series[i]);
  return css;
}

std::string style() {
  return ".plot{font:12px system-ui,'Helvetica Neue',Arial,sans-serif}.plot .end{text-anchor:end}"
         ".plot .mid{text-anchor:middle}.plot .head{font-weight:600}.plot .one{stroke-dasharray:3 3}"
         ".plot .whisker{stroke-width:1.2;fill:none}.plot .line{stroke-width:1.5;fill:none}"
         ".plot .wait{fill-opacity:.45}"
         ".plot .small{font-size:9px}" +
         colors(kLight) + "@media screen and (prefers-color-scheme:dark){" + colors(kDark) + "}";
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      case '\n':
      case '\t': out += c; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) out += "\xef\xbf\xbd";  // U+FFFD
        else out += c;
    }
  }
  return out;
}

double round_step(double length, double wanted) {
  const double raw = length / wanted, power = std::pow(10, std::floor(std::log10(raw)));
  const double digit = raw / power;
  return power * (digit > 5 ? 10 : digit > 2 ? 5 : digit > 1 ? 2 : 1);
}

// ---- Canvas

void Canvas::text(double x, double y, const char* classes, std::string_view text) {
  put("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>", x, y, classes, escaped(text));
}

void Canvas::line(double x1, double y1, double x2, double y2, const char* classes) {
  put("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>", x1, y1, x2, y2, classes);
}

void Canvas::bar(double x, double y, double width, double height, const char* classes, std::string_view title) {
  put("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" class=\"{}\"><title>{}</title></rect>", x, y,
      std::max(0., width), height, classes, escaped(title));
}

std::string Canvas::finish(double width, double height, std::string_view label) const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\" aria-label=\"{2}\">\n<style>{3}</style>\n{4}</svg>\n",
      width, height, escaped(label), style(), body_);
}

}  // namespace trivet
