#include "base/svg.h"

#include <algorithm>
#include <cmath>

namespace trivet {
namespace {

struct Palette {
  const char *ink, *soft, *grid, *axis, *bar, *base, *best, *tensor, *pipeline, *data, *context, *rest, *paper;
  const char *forward, *backward, *backward_input, *backward_weight, *layer, *optimizer, *exposed;
};
constexpr Palette kLight{"#1d2329", "#5b6670", "#e3e7ea", "#9aa4ad", "#7d9cc0", "#aab3bb", "#1f7a5c",
                         "#3b6fb6", "#d98324", "#8a5bb5", "#1a8f8a", "#dfe4e8", "#ffffff", "#a9c6f0",
                         "#a8d69c", "#96dad2", "#d0dac2", "#c9d1d8", "#e8d28c", "#d8342c"};
constexpr Palette kDark{"#e6eaed", "#9aa6b0", "#2c343b", "#65717b", "#5c7fa8", "#6a757f", "#3fb28a",
                        "#6a9be0", "#eba04c", "#b48be0", "#45bdb6", "#3a444c", "#14181b", "#34599a",
                        "#37713f", "#25766f", "#5d6b50", "#4a555e", "#7d6a2a", "#ff6f61"};

// Literal colours, not CSS variables: pictures are also viewed in programs that support only simple CSS rules.
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
  rule(".pipeline", "fill", p.pipeline), rule(".data", "fill", p.data), rule(".context", "fill", p.context);
  rule(".rest,.plot .idle", "fill", p.rest);
  rule(".F", "fill", p.forward), rule(".B", "fill", p.backward), rule(".I", "fill", p.backward_input);
  rule(".W", "fill", p.backward_weight), rule(".layer", "fill", p.layer), rule(".optimizer", "fill", p.optimizer);
  rule(".exposed", "fill", p.exposed), rule(".queued", "fill", p.axis);
  const char* const series[] = {p.tensor, p.pipeline, p.data, p.best, p.bar, p.base};  // for curves: s0 to s5
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

// For pages; pictures contain their own CSS.
constexpr const char* kCss = R"(
:root{color-scheme:light dark;--ink:#1d2329;--soft:#5b6670;--line:#e3e7ea;--paper:#fff;--wash:#f5f7f8;--good:#1f7a5c;--link:#245ea8}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e6eaed;--soft:#9aa6b0;--line:#2c343b;--paper:#14181b;--wash:#1c2226;--good:#3fb28a;--link:#7fb0ee}}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,"Helvetica Neue",Arial,sans-serif}
main{max-width:1220px;margin:0 auto;padding:40px 20px 80px}
h1{font-size:30px;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em}h2{font-size:19px;margin:44px 0 10px}
p{margin:8px 0}.soft,figcaption{color:var(--soft)}figcaption,small{font-size:14px}
.box{border-left:4px solid var(--good);background:var(--wash);padding:12px 16px;margin:22px 0}
figure{margin:14px 0;overflow-x:auto}figure svg{max-width:100%;height:auto;display:block}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums;line-height:1.35}
th,td{padding:6px 14px 6px 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{color:var(--soft);font-weight:600}.r{text-align:right}td.r{white-space:nowrap}td.note{min-width:200px}

a{color:var(--link)}td{overflow-wrap:anywhere}
pre,code{font:13px/1.45 ui-monospace,Menlo,Consolas,monospace}pre{background:var(--wash);padding:14px;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}
details{margin:14px 0}summary{cursor:pointer;font-weight:600}
@media print{main{max-width:none;padding:0}body{font-size:11pt}h2{break-after:avoid}figure,tr,.box{break-inside:avoid}.wide,figure{overflow:visible}table{font-size:7pt}td,th,td.r{white-space:normal;padding:3px 7px 3px 0}td.note{min-width:0}}
)";

std::string html_row(const TextBlock& table, const std::vector<std::string>& texts, const char* tag) {
  std::string row;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string text = escaped(texts[i]);
    const bool link = table.rows[0][i] == "files" && texts[i].starts_with("runs/");
    row += fmt::format("<{0}{1}>{2}</{0}>", tag,
                       table.align[i] == 'r'  ? " class=\"r\""
                       : texts[i].size() > 60 ? " class=\"note\""
                                              : "",
                       link ? fmt::format("<a href=\"{}\">files</a>", text) : text);
  }
  return "<tr>" + row + "</tr>\n";
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

void Canvas::dot(double x, double y, std::string_view series, std::string_view title) {
  put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" class=\"dot {}\"><title>{}</title></circle>", x, y, series,
      escaped(title));
}

std::string Canvas::finish(double width, double height, std::string_view label) const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\" aria-label=\"{2}\">\n<style>{3}</style>\n{4}</svg>\n",
      width, height, escaped(label), style(), body_);
}

// ---- Chart

void Chart::draw_axes(std::string_view title, bool numbers_along) {
  if (!(high > low)) low -= std::abs(low) / 2, high += high == 0 ? 1 : std::abs(high) / 2;
  canvas.text(left, top - 10, "head", title);
  const double rise = round_step(high - low, 4), tick = std::max(1., round_step(std::max(1., last - first), 6));
  const auto mark = [&](double value) {
    if (!(value >= low && value <= high + rise * 1e-3)) return;
    canvas.line(left, y_of(value), left + width, y_of(value), "grid");
    canvas.text(left - 8, y_of(value) + 4, "soft end", fmt::format("{:.6g}", value));
  };
  for (int n = 0; n <= 7; ++n) {
    if (!logarithmic) mark((std::ceil(low / rise) + n) * rise);
    const double along = (std::ceil(first / tick) + n) * tick;
    if (numbers_along && along <= last)
      canvas.text(x_of(along), top + height + 18, "soft mid", grouped(static_cast<int64_t>(along)));
  }
  if (logarithmic)
    for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10)
      mark(power), mark(3 * power);
}

double Chart::x_of(double along) const { return left + width * (along - first) / (last > first ? last - first : 1); }

double Chart::y_of(double value) const {
  const double share = logarithmic ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  return top + height * (1 - std::clamp(share, 0., 1.));
}

void Chart::draw_curve(const std::vector<std::pair<double, double>>& points, std::string_view classes) const {
  std::string path;
  size_t connected = 0;
  for (const auto& [along, value] : points) {
    if (std::isfinite(value))
      path += fmt::format("{}{:.1f} {:.1f}", connected++ > 0 ? "L" : "M", x_of(along), y_of(value));
    else path += std::exchange(connected, 0) == 1 ? "m-2 0h4" : "";  // makes a lone point visible
  }
  path += connected == 1 ? "m-2 0h4" : "";
  canvas.put("<path class=\"line {}\" d=\"{}\"/>", classes, path);
}

// ---- pages

std::string html_section(const PageSection& section) {
  std::string text = fmt::format("<h2>{}</h2>\n", escaped(section.heading));
  if (!section.picture.empty())
    text +=
        fmt::format("<figure>\n{}<figcaption>{}</figcaption>\n</figure>\n", section.picture, escaped(section.caption));
  if (const TextBlock& table = section.table; !table.rows.empty()) {
    text += "<div class=\"wide\"><table>\n<thead>" + html_row(table, table.rows[0], "th") + "</thead>\n<tbody>\n";
    for (size_t i = 1; i < table.rows.size(); ++i) text += html_row(table, table.rows[i], "td");
    text += "</tbody>\n</table></div>\n";
  }
  if (!section.note.empty()) text += fmt::format("<p class=\"soft\"><small>{}</small></p>\n", escaped(section.note));
  return text;
}

std::string html_details(std::string_view summary, std::string_view text) {
  return fmt::format("<details><summary>{}</summary><pre>{}</pre></details>\n", escaped(summary), escaped(text));
}

std::string html_page(std::string_view title, std::string_view body) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{0}</title>\n"
      "<style>{1}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n{2}</main>\n</body>\n</html>\n",
      escaped(title), kCss, body);
}

}  // namespace trivet
