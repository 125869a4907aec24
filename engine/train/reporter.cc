#include "engine/train/reporter.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <unistd.h>
#include <utility>

#include "base/host.h"
#include "engine/checkpoint/store.h"
#include "engine/config/explain.h"
#include "engine/config/tool_section.h"
#include "engine/metrics/accounting.h"
#include "engine/train/lr_schedule.h"
#include "kernels/ops.h"
#include "parallel/comm/link.h"
#include "parallel/comm/world.h"

namespace trivet {
namespace {

// The sums over ranks after a step.
struct StepSums {
  StepStats stats;
  Votes votes;
  int64_t above_peak = 0;  // 1 if rank 0 was faster than the peak and may measure it again
  int64_t lost_spans = 0;
  int64_t seen_keys = 0;  // the same on all tensor and pipeline ranks that share a batch
  int64_t gpus = 0, energy_mj = 0, clock_mhz = 0, slowed_by_power = 0, slowed_by_heat = 0;
};

struct FoundPeak {
  double tflops = 0;  // per rank
  std::string origin;
  bool measured = false;
};

// All ranks measure at the same time, because they also compute at the same time; the mean is one rank's share.
GemmPeak measure_peak(const Config& config, Trainer& trainer) {
  HostWorld& host = trainer.host();
  host.barrier();
  GemmPeak mean;
  for (const GemmPeak& peak :
       host.gather(measure_gemm_peak(trainer.device(), trainer.rank().ops, config.precision.dtype))) {
    mean.tflops += peak.tflops / host.size();
    mean.median_tflops += peak.median_tflops / host.size();
  }
  return mean;
}

FoundPeak find_peak(const Config& config, Trainer& trainer, Console* console) {
  if (config.train.skip_train) return {.origin = "not measured: nothing is trained"};
  if (config.device.peak_tflops) return {*config.device.peak_tflops, "device.peak_tflops"};
  const std::string arithmetic = config.device.tf32 ? "tf32" : std::string(word_of(config.precision.dtype));
  const bool fp8 = config.precision.fp8 != Fp8::none, on_gpu = trainer.device().kind() == DeviceKind::cuda;
  for (const std::string& of : {fp8 ? "fp8" : arithmetic, arithmetic})
    if (const auto known = on_gpu ? peak_tflops_by_name(trainer.device().name(), of) : std::nullopt)
      return {*known, "data sheet of " + trainer.device().name() + ", dense " + of};
  if (console) console->note("measuring the peak");
  // If runs of one GEMM vary, so does the peak that steps are measured against.
  const auto [tflops, median] = measure_peak(config, trainer);
  return {tflops,
          fmt::format("GEMMs in {} measured on all ranks together; the median run reached {}{}", arithmetic,
                      percent_text(median / tflops),
                      median < 0.8 * tflops ? ": other work runs here, and MFU is uncertain to the same degree" : ""),
          true};
}

// The arenas of every pipeline rank, gathered on all ranks; tensor- and data-parallel peers have the same sizes.
std::vector<MemoryPlan> gather_memory(Trainer& trainer) {
  MemoryPlan mine = trainer.state().memory();
  if (trainer.rank().backend.exchange_on_device)
    mine.items.push_back(
        {"NCCL, about", gpu_share_of(trainer.config(), trainer.host().size()).groups * kNcclGroupBytes});
  std::vector<int64_t> bytes;
  for (const MemoryItem& item : mine.items) bytes.push_back(item.bytes);
  const std::vector<int64_t> all = trainer.host().gather(bytes);
  const MeshShape& shape = trainer.mesh().shape;
  std::vector<MemoryPlan> plans(static_cast<size_t>(shape[Axis::pp]), mine);
  for (int pp = 0; pp < shape[Axis::pp]; ++pp)
    for (size_t i = 0; i < bytes.size(); ++i)
      plans[static_cast<size_t>(pp)].items[i].bytes =
          all[static_cast<size_t>(rank_of({{Axis::pp, pp}}, shape)) * bytes.size() + i];
  return plans;
}

std::vector<RankTime> gather_times(Trainer& trainer, const StepStats& mine) {
  std::vector<RankTime> times;
  for (const StepStats& stats : trainer.host().gather(mine))
    times.push_back({rank_name(static_cast<int>(times.size()), trainer.mesh().shape), stats});
  return times;
}

// The link of the netlab (launch/netlab/netlab.sh) that MPI ranks run in.
std::optional<Link> netlab_link() {
  const char *const gbps = std::getenv("TRIVET_NETLAB_GBPS"), *const delay_us = std::getenv("TRIVET_NETLAB_DELAY_US");
  if (!gbps || std::strtod(gbps, nullptr) <= 0 || !has_mpi_launcher()) return {};
  return Link{.latency_us = delay_us ? std::strtod(delay_us, nullptr) : 0, .gbps = std::strtod(gbps, nullptr)};
}

// The links of each class: emulated, measured now, or the netlab's. Collective.
KnownLinks known_links(const CommConfig& config, Trainer& trainer) {
  KnownLinks links;
  const Mesh& mesh = trainer.mesh();
  for (Communicator* group : {mesh.tensor.get(), mesh.context.get(), mesh.pipeline.get(), mesh.data.get()}) {
    if (group->size() == 1) continue;
    const Category category = group->group().category;
    const Link emulated = links_of(config).at(kCommClasses.at(class_of(category)));
    std::optional<Link>& link = links.at(class_of(category));
    if (!emulated.none()) link = emulated;
    else if (config.measure_links) link = measure_link(*group, trainer.device(), *trainer.rank().compute);
    else link = netlab_link();
  }
  return links;
}

// The links that the configuration does not specify.
std::string found_links_text(const CommConfig& config, const KnownLinks& links) {
  std::string text;
  for (size_t k = 0; k < links.size(); ++k)
    if (links[k] && links_of(config).at(kCommClasses[k]).none())
      text += fmt::format("{}{} {:.3g} us and {:.3g} Gbit/s", text.empty() ? "" : ", ", kCommClasses[k],
                          links[k]->latency_us, links[k]->gbps);
  return text.empty() ? text : text + (config.measure_links ? ": measured" : ": netlab");
}

TextBlock describe_speed(const Config& config, Trainer& trainer, const FoundPeak& peak, double flops,
                         const KnownLinks& links) {
  const Backend& backend = trainer.rank().backend;
  std::string exchange = backend.exchange_name;
  if (config.comm.nccl_ub && trainer.state().optimizer) {
    const auto& [grads, weights] = trainer.data_parallel();
    exchange += fmt::format("; {} of user buffers registered",
                            bytes_text(grads.registered_bytes() + weights.registered_bytes()));
  }
  TextBlock block{
      .title = "speed",
      .rows = {
          {"device", trainer.device().name()},
          {"exchange", exchange},
          {"threads per rank", std::to_string(trainer.threads())},
          {"peak per rank", (peak.tflops > 0 ? fmt::format("{:.3f} TFLOP/s: ", peak.tflops) : "") + peak.origin},
          {"model FLOPs", fmt::format("{} convention, {:.4g} per step{}", word_of(config.train.flops_convention), flops,
                                      config.data.reset_attention_mask
                                          ? "; mfu_in_documents (metrics.jsonl) leaves out scores of other documents"
                                          : "")}}};
  if (backend.cpu_isa)
    block.rows.push_back({"CPU instructions", fmt::format("{}: {}", word_of(*backend.cpu_isa),
                                                          config.device.cpu_isa ? "device.cpu_isa" : "the best here")});
  if (const std::string text = found_links_text(config.comm, links); !text.empty())
    block.rows.push_back({"links", text});
  return block;
}

}  // namespace

Reporter::Reporter(const LoadedConfig& loaded, const Layout& layout, const RunOrigin& origin, Trainer& trainer,
                   std::ostream& out)
    : config_(loaded.config),
      program_(origin.program),
      start_ns_(origin.start_ns),
      trainer_(trainer),
      host_(trainer.host()),
      links_(known_links(config_.comm, trainer)),
      time_(host_.size(), links_),
      meter_(links_, true) {
  const bool first = host_.rank() == 0;
  // Ranks that share a GPU cannot tell how much energy each of them uses.
  if (trainer.rank().backend.exchange_on_device || host_.size() == 1) gpu_ = create_gpu_monitor(trainer.device());
  if (first) console_.emplace(out, [] { return terminal_columns(STDOUT_FILENO); });
  const FoundPeak peak = find_peak(config_, trainer, console_ ? &*console_ : nullptr);
  work_ = {.tokens = config_.batch.global_batch_size.value() * config_.model.seq_length,
           .flops = flops_per_step(model_spec_of(config_.model), config_.batch.global_batch_size.value(),
                                   config_.train.flops_convention),
           .ranks = host_.size(),
           .peak_tflops = peak.tflops};
  peak_origin_ = peak.origin;
  peak_measured_ = peak.measured;
  peak_measurements_left_ = peak.measured ? 3 : 0;
  const std::vector<MemoryPlan> memory = gather_memory(trainer);
  if (console_) {
    std::vector<TextBlock> blocks = describe_run(config_, layout, memory);
    blocks.push_back(origin.data);
    blocks.push_back(describe_speed(config_, trainer, peak, work_.flops, links_));
    console_->banner(blocks);
    banner_ = render(blocks);
    const double timeout = config_.comm.timeout_s;
    log_.emplace(config_.train.run_dir + "/metrics.jsonl", warn_on_stderr, timeout > 0 ? timeout : HUGE_VAL,
                 [this](const nlohmann::ordered_json& record) { tell(&RunObserver::record, record); });
    console_->show_steps(config_.train.log_interval);
    walltime_.emplace(config_, [this](const WallTimeReport& report) { tell(&RunObserver::walltime, report); });
    observers_ = {&*console_, &*log_, &*walltime_};
    if (const std::string& folder = config_.train.tensorboard_dir; !folder.empty() && !config_.train.skip_train)
      observers_.push_back(&tensorboard_.emplace(folder, warn_on_stderr));
    for (const ToolSection& section : tool_sections())
      if (auto observer = section.observer ? section.observer(loaded) : nullptr)
        observers_.push_back(of_tools_.emplace_back(std::move(observer)).get());
  }
  collect_spans();
  // A GPU gets a whole step at a time, so there is no progress to show.
  if (console_ && trainer.device().kind() == DeviceKind::cpu)
    trainer.rank().executor.on_progress([this](size_t done, size_t of) { show_progress(done, of); });
}

// A step that takes less than a second shows no progress.
void Reporter::show_progress(size_t ops_done, size_t ops) {
  const int64_t now = now_ns();
  if (ops_done == 1) step_begun_ns_ = now, next_progress_ns_ = now + 1'000'000'000;
  if (now < next_progress_ns_) return;
  next_progress_ns_ = now + 100'000'000;
  const double part = static_cast<double>(ops_done) / static_cast<double>(ops), known = speed_.recent_step_seconds();
  const int64_t micro_batches = trainer_.rank().executor.schedule().m;
  console_->progress(static_cast<double>(trainer_.steps_done()) + part, config_.train.train_iters,
                     std::isnan(known) ? static_cast<double>(now - step_begun_ns_) * 1e-9 / part : known,
                     fmt::format("{}/{} micro-batches", static_cast<int64_t>(part * static_cast<double>(micro_batches)),
                                 micro_batches));
}

Votes Reporter::step(const StepResult& result, const Votes& votes) {
  const int64_t my_lost_spans = collect_spans();
  StepStats mine;
  const bool measures = trainer_.measures(result.step);
  if (measures && my_lost_spans == 0) mine = meter_.measure(spans_, result.start_ns, result.end_ns);
  const double seconds = static_cast<double>(result.end_ns - result.start_ns) * 1e-9;
  StepWork work = work_;
  work.tokens = result.samples * config_.model.seq_length;
  work.flops *= static_cast<double>(work.tokens) / static_cast<double>(work_.tokens);
  const bool above_peak = console_ && peak_measurements_left_ > 0 && mfu_of(work, seconds) > 1;
  // One all-reduce for everything.
  StepSums sums{mine, votes, above_peak, my_lost_spans, result.seen_keys};
  if (measures && gpu_) {
    const GpuReading now = gpu_();
    if (const int64_t before = std::exchange(energy_mj_, now.energy_mj); before >= 0 && now.energy_mj >= before)
      sums.gpus = 1, sums.energy_mj = now.energy_mj - before;
    sums.clock_mhz = std::max<int64_t>(0, now.sm_clock_mhz);
    sums.slowed_by_power = now.slowed_by_power, sums.slowed_by_heat = now.slowed_by_heat;
  }
  sums = host_.sum(sums);
  const auto& [measured, sum, faster, lost_spans, seen_keys, gpus, energy_mj, clock_mhz, by_power, by_heat] = sums;
  if (sum.folder_lost > 0) return sum;
  if (trace_) trace_step(result.step);
  StepStats stats = measured;
  if (lost_spans > 0) tell_lost_spans(result.step, lost_spans), stats = mine = {};
  if (faster > 0) measure_peak_again(result.step, work.flops / seconds / work.ranks / 1e12);
  work.peak_tflops = work_.peak_tflops;
  speed_.add(seconds);
  if (measures && lost_spans == 0) time_.add(stats, mine), ++own_work_steps_;
  look_for_stragglers(result.step, mine);
  if (!console_) return sum;
  if (!result.warning.empty()) note(result.warning);
  StepReport report;
  report.step = result.step;
  report.total_steps = config_.train.train_iters;
  report.consumed_samples = result.consumed_samples;
  report.consumed_tokens = result.consumed_tokens;
  report.loss = result.loss;
  report.grad_norm = result.grad_norm;
  report.learning_rate = result.learning_rate;
  const OptimizerConfig& o = config_.optimizer;
  if (config_.batch.rampup_batch_size || !config_.batch.step_batch_size_schedule.empty())
    report.batch_size = result.samples;
  if (o.weight_decay_incr_style != Ramp::constant)
    report.weight_decay = weight_decay(config_, result.step, result.consumed_samples);
  if (o.decoupled_lr || o.decoupled_min_lr)
    report.decoupled_learning_rate = learning_rates(config_, result.step, result.consumed_samples).decoupled;
  if (measures && gpu_) {
    const int64_t since = std::exchange(energy_read_ns_, result.end_ns), tokens = result.consumed_tokens;
    const int64_t trained = tokens - std::exchange(energy_read_tokens_, tokens);
    if (const double joules = static_cast<double>(energy_mj) * 1e-3; gpus == host_.size())
      report.gpus = GpuReport{.power_watts = joules / (static_cast<double>(result.end_ns - since) * 1e-9),
                              .energy_joules_per_token = joules / static_cast<double>(trained),
                              .sm_clock_mhz = static_cast<double>(clock_mhz) / static_cast<double>(gpus),
                              .slowed_by_power = by_power,
                              .slowed_by_heat = by_heat};
  }
  report.links = links_;
  report_speed(report, work, seconds, stats);
  if (config_.data.reset_attention_mask) {
    const MeshShape& mesh = trainer_.mesh().shape;
    work.flops = flops_in_documents(model_spec_of(config_.model), result.samples,
                                    static_cast<double>(seen_keys / (mesh[Axis::tp] * mesh[Axis::pp])));
    report.mfu_in_documents = mfu_of(work, seconds);
  }
  if (trainer_.mesh().shape[Axis::pp] == 1) report.bubble_fraction = 0;  // with one stage, idle time is not a bubble
  if (report.mfu > 1) limit_mfu(report);
  report.remaining_seconds = static_cast<double>(report.total_steps - report.step) * speed_.recent_step_seconds();
  // Printing the step's line redraws the progress bar below it, so the bar must already count this step.
  console_->progress(static_cast<double>(result.step), config_.train.train_iters, speed_.recent_step_seconds());
  tell(&RunObserver::step, report);
  return sum;
}

void Reporter::evaluation(const EvalReport& report) {
  EvalReport record = report;
  record.checkpoint = evaluated_;
  tell(&RunObserver::evaluation, record);
}

void Reporter::note(const std::string& line) { tell(&RunObserver::note, line); }

void Reporter::text(const std::string& piece) {
  if (console_) console_->text(piece);
}

void Reporter::begin(RunBegin run) {
  run.total_steps = config_.train.train_iters;
  run.ranks = host_.size();
  run.program = program_;
  run.banner = banner_;
  run.peak_tflops = work_.peak_tflops;
  run.peak_origin = peak_origin_;
  run.start_seconds = static_cast<double>(now_ns() - start_ns_) * 1e-9;
  for (RunObserver* const observer : observers_)
    if (const std::string text = observer->begin(run); !text.empty()) note(text);
}

void Reporter::starts() {
  open_trace();
  begin({});
}

void Reporter::resumed(int64_t step, const std::string& checkpoint, bool goes_on, bool evaluates_again,
                       double load_seconds) {
  if (config_.train.skip_train) {
    evaluated_ = checkpoint;
    return note(fmt::format("evaluating {}, of step {}", checkpoint, step));
  }
  const int64_t last = config_.train.train_iters;
  if (!goes_on || step < last) open_trace();
  begin({.step = step, .checkpoint = checkpoint, .goes_on = goes_on, .evaluates_again = evaluates_again});
  note(fmt::format("resumed from {} after step {}{}, loaded in {:.2f} s", checkpoint, step,
                   step > last    ? fmt::format(": train.train_iters is {}, so nothing is left to train", last)
                   : step == last ? fmt::format(" of {}: nothing is left to train; a larger train.{} trains on", last,
                                                config_.train.train_samples > 0 ? "train_samples" : "train_iters")
                                  : fmt::format(" of {}", last),
                   load_seconds));
}

void Reporter::saved(const SaveReport& report) { tell(&RunObserver::save, report); }

void Reporter::look_for_slow_disks(int64_t write_ns) {
  if (config_.train.straggler_factor == 0) return;
  for (const std::string& line : find_slow_disks(host_.gather(write_ns), config_.train.straggler_factor)) note(line);
}

void Reporter::flush() { tell(&RunObserver::flush); }

void Reporter::finish(const std::vector<TextBlock>& more) {
  const std::vector<RankTime> times = gather_times(trainer_, time_.own());
  std::vector<TextBlock> blocks = time_.describe(times);
  blocks.insert(blocks.end(), more.begin(), more.end());
  tell(&RunObserver::end, blocks);
  if (!trace_) return;
  trace_->close();
  host_.barrier();
  if (!console_) return;
  std::vector<std::string> parts;
  for (int rank = 0; rank < host_.size(); ++rank) parts.push_back(trace_part(rank));
  join_traces(parts, config_.train.run_dir + "/trace.json");
  for (const std::string& part : parts) std::filesystem::remove(part);
}

std::string Reporter::trace_part(int rank) const {
  return fmt::format("{}/trace.rank{}.json", config_.train.run_dir, rank);
}

void Reporter::open_trace() {
  if (!config_.train.trace) return;
  const std::string joined = config_.train.run_dir + "/trace.json";
  if (const std::string aside = console_ ? set_aside(joined) : ""; !aside.empty())
    note(fmt::format("{} was an earlier start's and is now {}", joined, aside));
  const int rank = host_.rank();
  PerfettoWriter::Names names{.process = rank_name(rank, trainer_.mesh().shape)};
  for (TraceRow& row : trainer_.trace().rows()) names.rows.push_back(row.name());
  for (const ParamUnit& unit : trainer_.state().params.units()) names.units.push_back(unit.name);
  trace_.emplace(trace_part(rank), rank, names, host_.broadcast(now_ns()), warn_on_stderr);
  clocks_.emplace(host_);
}

void Reporter::trace_step(int64_t step) {
  if (!clocks_->one_clock()) {
    clocks_->measure();
    for (std::vector<Span>& row : spans_)
      for (Span& span : row)
        for (int64_t Span::*time : {&Span::start_ns, &Span::end_ns, &Span::wire_start_ns, &Span::wire_end_ns})
          if (span.*time != 0) span.*time += clocks_->offset(span.*time);
  }
  trace_->step(step, spans_);
}

void Reporter::look_for_stragglers(int64_t step, const StepStats& stats) {
  const int64_t interval = config_.train.straggler_interval;
  if (config_.train.straggler_factor == 0) return;
  own_work_ += stats;
  if (step % interval != 0) return;
  const std::vector<StepStats> work = host_.gather(own_work_);
  own_work_ = {};
  const int64_t steps = std::max<int64_t>(1, std::exchange(own_work_steps_, 0));
  if (!console_) return;
  std::vector<int> stages;
  for (int rank = 0; rank < host_.size(); ++rank) stages.push_back(position_of(rank, trainer_.mesh().shape)[Axis::pp]);
  for (const std::string& line : find_stragglers(work, stages, steps, config_.train.straggler_factor)) note(line);
}

void Reporter::measure_peak_again(int64_t step, double tflops) {
  const double before = work_.peak_tflops;
  work_.peak_tflops = std::max(before, measure_peak(config_, trainer_).tflops);
  peak_measurements_left_ = work_.peak_tflops > before ? peak_measurements_left_ - 1 : 0;
  collect_spans();  // these GEMMs are not part of the next step
  note(
      fmt::format("step {} made {:.5g} TFLOP/s per rank, more than the measured peak of {:.5g}, probably because other "
                  "work ran during the measurement: measured again, the peak is {:.5g}",
                  step, tflops, before, work_.peak_tflops));
}

void Reporter::limit_mfu(StepReport& report) {
  const std::string what = fmt::format("step {} made {:.5g} TFLOP/s per rank, more than the peak of {:.5g}",
                                       report.step, report.model_tflops_per_rank, work_.peak_tflops);
  report.mfu = peak_measured_ ? 1 : StepReport::kUnknown;
  if (peak_measured_) work_.peak_tflops = report.model_tflops_per_rank;
  if (std::exchange(mfu_explained_, true)) return;
  if (peak_measured_) note(what + ", measured again: from here on the peak is the rate of the fastest step");
  else
    note(fmt::format("{} ({}): the MFU of such a step is unknown{}", what, peak_origin_,
                     config_.device.peak_tflops ? "; expected a larger device.peak_tflops, or auto" : ""));
}

void Reporter::tell_lost_spans(int64_t step, int64_t lost) {
  if (std::exchange(lost_spans_told_, true)) return;
  note(fmt::format(
      "step {} has {} more spans than the {} that a rank has room for: where the time of such steps goes (exposed, "
      "wait, bubble) is unknown{}",
      step, lost, trainer_.state().most_spans, config_.train.trace ? ", and trace.json lacks the rest" : ""));
}

int64_t Reporter::collect_spans() {
  spans_.resize(trainer_.trace().rows().size());
  size_t i = 0;
  for (TraceRow& row : trainer_.trace().rows()) row.take(spans_[i++]);
  return trainer_.trace().take_lost();
}

}  // namespace trivet
