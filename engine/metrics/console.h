// Console: the view of a person watching the run. A banner, one aligned line a step (a header now and then),
// evaluations and notes; and on a terminal, a progress bar on the last line that the other lines push down.
//
//     step        loss  grad norm  learning rate       ms    tokens/s  TFLOP/s    MFU  exposed   wait  bubble   left
//    3/2000   10.812345      2.410     1.2000e-05    512.3      15,998     0.52  41.2%     3.1%   1.2%    0.4%  17:03
//
// A narrow terminal leaves columns out, in this order: left (which the bar says, too), bubble, wait, exposed, TFLOP/s,
// learning rate, grad norm, MFU, tokens/s. TFLOP/s are model FLOPs of one rank; exposed is wire time with no compute to
// hide it, wait is waiting for peers; left is the time of the steps to come, by the median of the last ones.
// Used by one thread, of rank 0.
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
  // The columns of the terminal now; 0 if there is none, and then there is no bar.
  using Columns = std::function<int()>;

  Console(std::ostream& out, Columns columns, double quiet_seconds = 60)
      : out_(out), columns_(std::move(columns)), quiet_seconds_(quiet_seconds) {}
  ~Console() override { clear_bar(); }
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void banner(const std::vector<TextBlock>& blocks);
  // step() then prints a line for every `every`th step and for the last one; for all without it.
  void show_steps(int64_t every) { every_ = every; }
  void step(const StepReport& report) override;
  void evaluation(const EvalReport& report) override;
  void save(const SaveReport& report) override;
  void walltime(const WallTimeReport& report) override { note(report.text); }
  void note(const std::string& line) override;
  void end(const std::vector<TextBlock>& times) override { banner(times); }
  void text(const std::string& piece);  // of a text that grows: shown immediately, as it is

  // Moves the bar; redrawn at most ten times a second. `steps`: done, with a part of the next; `of_step` says which
  // part. `step_seconds`: how long one step is likely to take. If there is no bar, `of_step` is a line when none was
  // written for `quiet_seconds`.
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
  size_t left_out_ = 0;  // columns of the last header that the terminal had no room for
  std::string bar_;      // what it says, without its picture; empty: none
  double bar_fraction_ = 0;
  bool bar_drawn_ = false;
  double next_draw_ = 0, line_at_ = now_seconds();
};

}  // namespace trivet
