// Reporter: reports events to the run's observers on rank 0, such as the console and metrics.jsonl, and writes each
// rank's part of the trace. Each rank has one and makes the same calls.
#pragma once

#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/saver.h"
#include "engine/config/load.h"
#include "engine/config/validate.h"
#include "engine/metrics/console.h"
#include "engine/metrics/jsonl.h"
#include "engine/metrics/perfetto.h"
#include "engine/metrics/step_report.h"
#include "engine/metrics/step_stats.h"
#include "engine/metrics/tensorboard.h"
#include "engine/metrics/time_table.h"
#include "engine/metrics/walltime.h"
#include "engine/train/trainer.h"
#include "kernels/gpu_monitor.h"
#include "parallel/comm/clock_offsets.h"

namespace trivet {

// Votes: what the ranks agree on between two steps. Their sums travel in the all-reduce of a step's statistics, so that
// all ranks draw the same conclusions. A rank that stopped alone would leave the others waiting in a collective. All
// members are int64_t, for the all-reduce.
struct Votes {
  int64_t stop_signal = 0;  // the process was asked to stop
  int64_t out_of_time = 0;  // the next step might exceed the time limit
  int64_t folder_lost = 0;  // train.run_dir is no longer the run's
  SaveVote save;

  bool end_run() const { return stop_signal > 0 || out_of_time > 0 || folder_lost > 0; }

  void add(const Votes& other) {
    stop_signal += other.stop_signal;
    out_of_time += other.out_of_time;
    folder_lost += other.folder_lost;
    save.busy += other.save.busy;
    save.failed += other.save.failed;
  }
};

// The origin of a run, for its records.
struct RunOrigin {
  TextBlock data;        // the run's input
  std::string program;   // the program's version
  int64_t start_ns = 0;  // when the rank started
};

class Reporter {
 public:
  // Collective: measures or looks up the peak, prints the banner. `loaded`, `trainer` and `out` must outlive this.
  Reporter(const LoadedConfig& loaded, const Layout& layout, const RunOrigin& origin, Trainer& trainer,
           std::ostream& out);

  // Collective. Returns the sums of the ranks' votes, which travel with the step's statistics.
  Votes step(const StepResult& result, const Votes& votes);
  // Excludes work since the last step, such as an evaluation, from the next one.
  void forget_spans() { collect_spans(); }
  void evaluation(const EvalReport& report);
  void note(const std::string& line);
  void text(const std::string& piece);
  // Call starts() or resumed() before the first step. `goes_on`: the run continues in its own folder; metrics.jsonl
  // loses the records of steps to be repeated and, with `evaluates_again`, the record of the evaluation of `step`.
  // With train.skip_train, the evaluation is added to the folder's records.
  void starts();
  void resumed(int64_t step, const std::string& checkpoint, bool goes_on, bool evaluates_again, double load_seconds);
  void saved(const SaveReport& report);
  void look_for_slow_disks(int64_t write_ns);  // collective
  void flush();                                // before a save
  // Collective: gathers the ranks' times and joins their traces.
  void finish(const std::vector<TextBlock>& more = {});  // more: printed after the time tables

 private:
  // Calls every observer once.
  template <class... Args, class... Given>
  void tell(void (RunObserver::*event)(Args...), const Given&... given) {
    for (RunObserver* const observer : observers_) (observer->*event)(given...);
  }
  void begin(RunBegin run);
  std::string trace_part(int rank) const;
  void open_trace();
  void trace_step(int64_t step);                    // collective; converts spans_ to rank 0's clock
  void show_progress(size_t ops_done, size_t ops);  // of the step in progress
  void look_for_stragglers(int64_t step, const StepStats& stats);
  int64_t collect_spans();  // returns how many were lost
  void tell_lost_spans(int64_t step, int64_t lost);
  // Collective, after a step that was faster than the peak. tflops: per rank; only rank 0's counts.
  void measure_peak_again(int64_t step, double tflops);
  // For a step that is still faster: its rate becomes the peak if the peak was measured; else its MFU is unknown.
  void limit_mfu(StepReport& report);

  const Config& config_;
  const std::string program_;
  const int64_t start_ns_;
  Trainer& trainer_;
  HostWorld& host_;
  std::string peak_origin_;
  bool peak_measured_ = false;
  int peak_measurements_left_ = 0;
  bool mfu_explained_ = false, lost_spans_told_ = false;
  const KnownLinks links_;
  StepWork work_;
  RunningSpeed speed_;
  TimeTable time_;
  StepMeter meter_;
  StepStats own_work_;          // since the last straggler check
  int64_t own_work_steps_ = 0;  // measured steps in it
  int64_t step_begun_ns_ = 0, next_progress_ns_ = 0;
  std::vector<std::vector<Span>> spans_;                                  // [row]
  GpuMonitor gpu_;                                                        // empty: no GPU
  int64_t energy_mj_ = -1, energy_read_ns_ = 0, energy_read_tokens_ = 0;  // at the last reading
  std::string evaluated_;                                                 // the checkpoint, with train.skip_train
  // On rank 0.
  std::optional<Console> console_;
  std::optional<MetricsLog> log_;
  std::optional<WallTime> walltime_;
  std::optional<TensorBoardLog> tensorboard_;
  std::vector<std::unique_ptr<RunObserver>> of_tools_;
  std::vector<RunObserver*> observers_;
  std::string banner_;
  std::optional<PerfettoWriter> trace_;
  std::optional<ClockOffsets> clocks_;  // with a trace, whose times are on rank 0's clock
};

}  // namespace trivet
