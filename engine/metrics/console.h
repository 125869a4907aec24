// Console: human-readable output of a run. A banner, one aligned line per step (with a repeated header), evaluations
// and notes; on a terminal also a progress bar, which stays below all other lines.
//
//     step        loss  grad norm  learning rate       ms    tokens/s  TFLOP/s    MFU  exposed   wait  bubble   left
//    3/2000   10.812345      2.410     1.2000e-05    512.3      15,998     0.52  41.2%     3.1%   1.2%    0.4%  17:03
//
// A narrow terminal omits columns in this order: left (also shown in the bar), bubble, wait, exposed, TFLOP/s, learning
// rate, grad norm, MFU, tokens/s. TFLOP/s counts model FLOPs per rank; exposed is wire time not overlapped by compute,
// wait is time spent waiting for peers; left is the estimated time for the remaining steps, from the median of recent
// steps. Used by one thread, on rank 0.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "base/host.h"
#include "base/text.h"
#include "engine/metrics/observer.h"

namespace trivet {

class Console : public RunObserver {
 public:
  // Returns the terminal's current width in columns; 0: no terminal, so no bar.
  using Columns = std::function<int()>;

  Console(std::ostream& out, Columns columns, double quiet_seconds = 60)
      : out_(out), columns_(std::move(columns)), quiet_seconds_(quiet_seconds) {}
  ~Console() override { clear_bar(); }
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void banner(const std::vector<TextBlock>& blocks);
  // Makes step() print only every `every`-th step and the last one; default: all steps.
  void show_steps(int64_t every) { every_ = every; }
  void step(const StepReport& report) override;
  void evaluation(const EvalReport& report) override;
  void save(const SaveReport& report) override;
  void walltime(const WallTimeReport& report) override { note(report.text); }
  void note(const std::string& line) override;
  void end(const std::vector<TextBlock>& times) override { banner(times); }
  void text(const std::string& piece);  // part of streamed text: printed immediately, verbatim

  // Updates the bar, redrawn at most ten times a second. `steps`: completed steps plus a fraction of the next;
  // `of_step` describes that fraction. `step_seconds`: the expected duration of a step. Without a bar, prints `of_step`
  // as a line if no line was written for `quiet_seconds`.
  void progress(double steps, int64_t total_steps, double step_seconds, const std::string& of_step = "");

 private:
  void line(const std::string& text);  // above the bar
  void clear_bar();
  void draw_bar();

  std::ostream& out_;
  Columns columns_;
  const double quiet_seconds_;
  int64_t every_ = 1;
  int lines_until_header_ = 0;
  size_t left_out_ = 0;  // columns omitted from the last header
  std::string bar_;      // its text, without the picture; empty: none
  double bar_fraction_ = 0;
  bool bar_drawn_ = false;
  double next_draw_ = 0, line_at_ = now_seconds();
};

}  // namespace trivet
