#include "engine/metrics/console.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>

namespace trivet {
namespace {

constexpr int kLinesOfAHeader = 40;
// `leaves`: the order in which a narrow terminal omits columns, 1 first; 0: never.
struct Column {
  const char* name;
  size_t width;
  size_t leaves;
};
constexpr std::array kColumns = {Column{"step", 9, 0},           Column{"loss", 11, 0},  Column{"grad norm", 9, 7},
                                 Column{"learning rate", 13, 6}, Column{"ms", 8, 0},     Column{"tokens/s", 11, 9},
                                 Column{"TFLOP/s", 8, 5},        Column{"MFU", 5, 8},    Column{"exposed", 7, 4},
                                 Column{"wait", 6, 3},           Column{"bubble", 6, 2}, Column{"left", 5, 1}};
using Cells = std::array<std::string, kColumns.size()>;

// Formats a number for a column; "-" if it is unknown. (The loss does not use this: NaN there is printed as "nan".)
std::string cell(double x, int digits) { return std::isnan(x) ? "-" : fmt::format("{:.{}f}", x, digits); }

size_t step_width(const StepReport& r) {
  return std::max(kColumns[0].width, 2 * std::to_string(r.total_steps).size() + 1);
}

Cells cells_of(const StepReport& r) {
  const std::string total = std::to_string(r.total_steps);
  const double tokens = r.tokens_per_second;
  return {fmt::format("{:>{}}/{}", r.step, total.size(), total),
          fmt::format("{:.6f}", r.loss),
          fmt::format("{:.3f}", r.grad_norm),
          fmt::format("{:.4e}", r.learning_rate),
          cell(1e3 * r.step_seconds, 1),
          std::isfinite(tokens) ? grouped(std::llround(tokens)) : "-",
          cell(r.model_tflops_per_rank, std::abs(r.model_tflops_per_rank) < 10 ? 3 : 1),
          percent_text(r.mfu),
          percent_text(r.stats.of_window(StepStats::sum(r.stats.exposed))),
          percent_text(r.stats.of_window(StepStats::sum(r.stats.wait))),
          percent_text(r.bubble_fraction),
          duration_text(r.remaining_seconds)};
}

// How many columns do not fit on a terminal `terminal` characters wide; 0 characters: no terminal.
size_t columns_left_out(size_t step_width, size_t terminal) {
  size_t width = step_width - kColumns[0].width;
  for (const Column& column : kColumns) width += column.width + 2;
  size_t out = 0;
  while (terminal > 0 && width - 2 >= terminal && out < 9)
    width -= std::ranges::find(kColumns, ++out, &Column::leaves)->width + 2;
  return out;
}

std::string row_of(const Cells& cells, size_t step_width, size_t left_out) {
  std::string row;
  for (size_t i = 0; i < cells.size(); ++i)
    if (kColumns[i].leaves == 0 || kColumns[i].leaves > left_out)
      row += fmt::format("{}{:>{}}", i == 0 ? "" : "  ", cells[i], i == 0 ? step_width : kColumns[i].width);
  return row;
}

}  // namespace

void Console::banner(const std::vector<TextBlock>& blocks) {
  clear_bar();
  out_ << render(blocks, columns_ ? columns_() : 0) << '\n' << std::flush;
}

void Console::step(const StepReport& report) {
  if (report.step % every_ != 0 && report.step != report.total_steps) return;
  const size_t width = step_width(report);
  const size_t left_out = columns_left_out(width, static_cast<size_t>(columns_ ? columns_() : 0));
  if (lines_until_header_-- == 0 || left_out != left_out_) {
    Cells names;
    std::ranges::transform(kColumns, names.begin(), &Column::name);
    line(row_of(names, width, left_out));
    lines_until_header_ = kLinesOfAHeader - 1;
    left_out_ = left_out;
  }
  line(row_of(cells_of(report), width, left_out));
}

void Console::evaluation(const EvalReport& r) {
  note(fmt::format("evaluation at step {}: {} loss {:.6f}, perplexity {:.2f}, {} samples in {:.1f} s", r.step, r.set,
                   r.loss, std::exp(r.loss), grouped(r.samples), r.seconds));
}

void Console::save(const SaveReport& r) {
  note(fmt::format("saved step {}: {} in {:.2f} s, of which training waited {:.3f} s", r.step, bytes_text(r.bytes),
                   r.seconds, r.stall_seconds));
}

void Console::note(const std::string& text) { line(wrapped(text, static_cast<size_t>(columns_ ? columns_() : 0))); }

void Console::text(const std::string& piece) {
  clear_bar();
  out_ << piece << std::flush;
}

void Console::progress(double steps, int64_t total_steps, double step_seconds, const std::string& of_step) {
  const auto total = static_cast<double>(total_steps);
  const auto whole = static_cast<int64_t>(steps);
  const bool last = whole >= total_steps;
  const double now = now_seconds();
  bar_fraction_ = total_steps <= 0 ? 1 : std::clamp(steps / total, 0.0, 1.0);
  bar_ = last ? ""
              : fmt::format("{}/{}  {:.1f}%  {}{} left", whole, total_steps, 100 * bar_fraction_,
                            of_step.empty() ? "" : of_step + "  ", duration_text((total - steps) * step_seconds));
  if (!of_step.empty() && now - line_at_ >= quiet_seconds_ && !(columns_ && columns_() > 0))
    note(fmt::format("step {}: {}", whole + 1, of_step));
  if (last) clear_bar();
  else if (now >= next_draw_) draw_bar();
  else return;
  next_draw_ = now + 0.1;
}

void Console::line(const std::string& text) {
  clear_bar();
  out_ << text << '\n' << std::flush;
  line_at_ = now_seconds();
  draw_bar();
}

void Console::clear_bar() {
  if (!bar_drawn_) return;
  out_ << "\r\033[K" << std::flush;
  bar_drawn_ = false;
}

void Console::draw_bar() {
  const int width = columns_ && !bar_.empty() ? columns_() : 0;
  const int picture = std::min(width - static_cast<int>(bar_.size()) - 6, 60);  // one column stays free: no line wrap
  if (picture < 8) return clear_bar();
  const auto filled = static_cast<size_t>(std::floor(bar_fraction_ * picture));
  out_ << "\r\033[K[" << std::string(filled, '=') << (filled < static_cast<size_t>(picture) ? ">" : "")
       << std::string(static_cast<size_t>(std::max(0, picture - static_cast<int>(filled) - 1)), ' ') << "]  " << bar_
       << std::flush;
  bar_drawn_ = true;
}

}  // namespace trivet
