#include "engine/metrics/console.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "base/host.h"

namespace trivet {
namespace {

constexpr int kLinesOfAHeader = 40;
constexpr auto kColumns = "{:>{}}  {:>11}  {:>9}  {:>13}  {:>8}  {:>11}  {:>8}  {:>5}  {:>7}  {:>6}  {:>6}";

// A number in a column; "-" where it is unknown, but the loss of a run that went wrong is "nan".
std::string cell(double x, int digits) { return std::isnan(x) ? "-" : fmt::format("{:.{}f}", x, digits); }

std::string columns(const StepReport& r) {
  const std::string total = std::to_string(r.total_steps);
  const std::string step = fmt::format("{:>{}}/{}", r.step, total.size(), total);
  const double tokens = r.tokens_per_second;
  return fmt::format(kColumns, step, std::max<size_t>(9, step.size()), fmt::format("{:.6f}", r.loss),
                     fmt::format("{:.3f}", r.grad_norm), fmt::format("{:.4e}", r.learning_rate),
                     cell(1e3 * r.step_seconds, 1), std::isfinite(tokens) ? grouped(std::llround(tokens)) : "-",
                     cell(r.model_tflops_per_rank, std::abs(r.model_tflops_per_rank) < 10 ? 3 : 1), percent_text(r.mfu),
                     percent_text(r.stats.of_window(StepStats::sum(r.stats.exposed_wire))),
                     percent_text(r.stats.of_window(StepStats::sum(r.stats.exposed_wait))),
                     percent_text(r.bubble_fraction));
}

std::string header(const StepReport& r) {
  const size_t width = std::max<size_t>(9, 2 * std::to_string(r.total_steps).size() + 1);
  return fmt::format(kColumns, "step", width, "loss", "grad norm", "learning rate", "ms", "tokens/s", "TFLOP/s", "MFU",
                     "exposed", "wait", "bubble");
}

}  // namespace

void Console::banner(const std::vector<TextBlock>& blocks) {
  clear_bar();
  out_ << render(blocks) << '\n';
  out_.flush();
}

void Console::step(const StepReport& report) {
  if (lines_until_header_-- == 0) {
    line(header(report));
    lines_until_header_ = kLinesOfAHeader - 1;
  }
  line(columns(report));
}

void Console::eval(const EvalReport& r) {
  line(fmt::format("evaluation at step {}: validation loss {:.6f}, perplexity {:.2f}, {} samples in {:.1f} s", r.step,
                   r.validation_loss, std::exp(r.validation_loss), grouped(r.samples), r.seconds));
}

void Console::note(const std::string& text) { line(text); }

void Console::progress(int64_t step, int64_t total_steps, double step_seconds) {
  const bool last = step >= total_steps;
  const double now = now_seconds();
  bar_fraction_ =
      total_steps <= 0 ? 1 : std::clamp(static_cast<double>(step) / static_cast<double>(total_steps), 0.0, 1.0);
  bar_ = last ? ""
              : fmt::format("{}/{}  {:.1f}%  {} left", step, total_steps, 100 * bar_fraction_,
                            duration_text(static_cast<double>(total_steps - step) * step_seconds));
  if (last) clear_bar();
  else if (now >= next_draw_) draw_bar();
  else return;
  next_draw_ = now + 0.1;
}

void Console::line(const std::string& text) {
  clear_bar();
  out_ << text << '\n';
  draw_bar();
  out_.flush();
}

void Console::clear_bar() {
  if (!bar_drawn_) return;
  out_ << "\r\033[K";
  out_.flush();
  bar_drawn_ = false;
}

void Console::draw_bar() {
  const int width = columns_ && !bar_.empty() ? columns_() : 0;
  const int picture = std::min(width - static_cast<int>(bar_.size()) - 6, 60);  // one column stays free: no line wrap
  if (picture < 8) return clear_bar();
  const auto filled = static_cast<size_t>(std::floor(bar_fraction_ * picture));
  out_ << "\r\033[K[" << std::string(filled, '=') << (filled < static_cast<size_t>(picture) ? ">" : "")
       << std::string(static_cast<size_t>(std::max(0, picture - static_cast<int>(filled) - 1)), ' ') << "]  " << bar_;
  out_.flush();
  bar_drawn_ = true;
}

}  // namespace trivet
