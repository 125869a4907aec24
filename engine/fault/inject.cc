#include "engine/fault/inject.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <ranges>
#include <string_view>
#include <thread>
#include <unistd.h>

#include "base/check.h"

namespace trivet {
namespace {

struct FaultAbout {
  std::string_view name;
  StepPhase phase;  // default phase
  std::string_view about;
  std::string_view only = {};  // the phases in which it can strike; empty: all
};

// Indexed by FaultKind.
constexpr auto kFaults = std::to_array<FaultAbout>({
    {"kill", StepPhase::backward, "SIGKILL to the rank's process"},
    {"abort", StepPhase::backward, "abort()"},
    {"segv", StepPhase::backward, "SIGSEGV"},
    {"throw", StepPhase::backward, "an internal error"},
    {"stop", StepPhase::backward, "SIGSTOP to the rank's process: a hang"},
    {"slow", StepPhase::step, "slow=F: from that step on the rank computes F times slower"},
    {"nan", StepPhase::reduce,
     "NaN in a gradient before it is reduced; at forward: in the loss; at optimizer: after the reduction",
     "forward, reduce, optimizer"},
    {"inf", StepPhase::reduce, "the same, with infinity", "forward, reduce, optimizer"},
    {"bitflip", StepPhase::step, "one bit of a weight; at reduce or optimizer: of a gradient"},
    {"skip", StepPhase::reduce, "the rank skips its next collective"},
    {"extra", StepPhase::reduce, "the rank calls one extra collective"},
    {"wrong_size", StepPhase::reduce, "its next collective is one element short"},
    {"wrong_type", StepPhase::reduce, "its next collective has another data type"},
    {"oom", StepPhase::step, "at step 0: the rank gets no memory for its tensors", "step"},
    {"enospc", StepPhase::save, "the disk is full while a checkpoint is written", "save"},
    {"eio", StepPhase::save, "the disk fails while a checkpoint is written", "save"},
    {"torn_write", StepPhase::save, "half of a write is lost without an error", "save"},
});
static_assert(kFaults.size() == static_cast<size_t>(FaultKind::torn_write) + 1);

// Indexed by StepPhase.
constexpr auto kPhases =
    std::to_array<std::string_view>({"step", "forward", "backward", "reduce", "optimizer", "save"});
static_assert(kPhases.size() == static_cast<size_t>(StepPhase::save) + 1);

template <class T>
bool parse_number(std::string_view text, T& to) {
  const auto end = std::from_chars(text.data(), text.data() + text.size(), to);
  return end.ec == std::errc() && end.ptr == text.data() + text.size();
}

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw ConfigError(
      fmt::format("--inject {}: {}; expected FAULT:RANK:STEP[:PHASE], RANK a number, last or all, STEP a "
                  "number, PHASE one of {}, FAULT one of\n{}",
                  text, why, fmt::join(kPhases, ", "), fault_table()));
}

bool is_storage_fault(FaultKind kind) {
  return kind == FaultKind::enospc || kind == FaultKind::eio || kind == FaultKind::torn_write;
}

}  // namespace

std::string fault_table() {
  std::string text;
  for (const FaultAbout& fault : kFaults)
    text += fmt::format("  {:<11} {} (by default at {})\n", fault.name, fault.about,
                        kPhases[static_cast<size_t>(fault.phase)]);
  return text;
}

std::vector<std::string_view> fault_names() {
  std::vector<std::string_view> names;
  for (const FaultAbout& fault : kFaults) names.push_back(fault.name);
  return names;
}

Fault parse_fault(const std::string& text) {
  std::vector<std::string_view> parts;
  for (const auto part : std::views::split(text, ':')) parts.emplace_back(part.begin(), part.end());
  if (parts.size() < 3 || parts.size() > 4)
    refuse(text, fmt::format("has {} part{}", parts.size(), parts.size() == 1 ? "" : "s"));

  Fault fault{.text = text};
  const size_t equals = parts[0].find('=');
  const std::string_view name = parts[0].substr(0, equals);
  const auto kind = std::ranges::find(kFaults, name, &FaultAbout::name);
  if (kind == kFaults.end()) refuse(text, fmt::format("no fault is called '{}'", name));
  fault.kind = static_cast<FaultKind>(kind - kFaults.begin());
  fault.phase = kind->phase;
  const bool slow = fault.kind == FaultKind::slow;
  if (slow != (equals != std::string_view::npos)) refuse(text, slow ? "slow needs a factor, as in slow=3" : "stray =");
  if (slow && (!parse_number(parts[0].substr(equals + 1), fault.factor) || !(fault.factor >= 1 && fault.factor <= 1e6)))
    refuse(text, "the factor of slow must be from 1 to 1000000");

  if (parts[1] == "all") fault.rank = Fault::kAll;
  else if (parts[1] == "last") fault.rank = Fault::kLast;
  else if (!parse_number(parts[1], fault.rank) || fault.rank < 0) refuse(text, fmt::format("rank '{}'", parts[1]));
  const int64_t first = fault.kind == FaultKind::oom ? 0 : 1;
  if (!parse_number(parts[2], fault.step) || fault.step < first) refuse(text, fmt::format("step '{}'", parts[2]));
  if (fault.kind == FaultKind::oom && fault.step != 0)
    refuse(text, "oom needs step 0, as a rank allocates all its memory before its first step");
  if (parts.size() == 4) {
    const auto phase = std::find(kPhases.begin(), kPhases.end(), parts[3]);
    if (phase == kPhases.end()) refuse(text, fmt::format("phase '{}'", parts[3]));
    fault.phase = static_cast<StepPhase>(phase - kPhases.begin());
    if (!kind->only.empty() && kind->only.find(*phase) == std::string_view::npos)
      refuse(text, fmt::format("{} strikes at {} only", name, kind->only));
  }
  return fault;
}

std::vector<Fault> parse_faults(std::span<const std::string> texts) {
  std::vector<Fault> faults;
  for (const std::string& text : texts) faults.push_back(parse_fault(text));
  return faults;
}

FaultInjector::FaultInjector(std::span<const Fault> faults, int rank, int world_size) {
  for (const Fault& fault : faults) {
    if (fault.rank >= world_size)
      throw ConfigError(fmt::format("--inject {}: no rank {} in a world of {}", fault.text, fault.rank, world_size));
    if (fault.strikes(rank, world_size)) faults_.push_back(fault);
  }
  struck_.resize(faults_.size());
}

Memory* FaultInjector::memory() {
  static class : public Memory {
    void* allocate(int64_t bytes) override { fail(fmt::format("cannot allocate {} bytes: an injected fault", bytes)); }
    void deallocate(void*, int64_t) noexcept override {}
  } none;
  return std::ranges::count(faults_, FaultKind::oom, &Fault::kind) > 0 ? &none : nullptr;
}

void FaultInjector::begin(StepPhase phase, int64_t step) {
  if (phase == StepPhase::save) {
    std::lock_guard lock(mutex_);
    saved_step_ = step;
  }
  for (size_t i = 0; i < faults_.size(); ++i) {
    if (faults_[i].phase != phase || faults_[i].step != step || is_storage_fault(faults_[i].kind)) continue;
    {
      std::lock_guard lock(mutex_);
      if (struck_[i]) continue;
      struck_[i] = true;
    }
    strike(faults_[i], step);
  }
  phase_begin_ns_ = now_ns();
}

void FaultInjector::end(StepPhase phase, int64_t) {
  if (slow_ == 1 || (phase != StepPhase::forward && phase != StepPhase::backward)) return;
  const double took = static_cast<double>(now_ns() - phase_begin_ns_);
  std::this_thread::sleep_for(std::chrono::nanoseconds(static_cast<int64_t>(took * (slow_ - 1))));
}

std::string FaultInjector::not_struck() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string_view> texts;
  for (size_t i = 0; i < faults_.size(); ++i)
    if (!struck_[i]) texts.push_back(faults_[i].text);
  return fmt::format("{}", fmt::join(texts, ", "));
}

CallFault FaultInjector::next_call() { return next_call_.exchange(CallFault::none); }

Disk::Fault FaultInjector::disk_fault() {
  if (std::none_of(faults_.begin(), faults_.end(), [](const Fault& fault) { return is_storage_fault(fault.kind); }))
    return {};
  return [this](DiskOp op, const std::string&) {
    if (op != DiskOp::write) return DiskFate::normal;
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < faults_.size(); ++i) {
      if (struck_[i] || !is_storage_fault(faults_[i].kind) || faults_[i].step != saved_step_) continue;
      struck_[i] = true;
      return faults_[i].kind == FaultKind::enospc ? DiskFate::no_space
             : faults_[i].kind == FaultKind::eio  ? DiskFate::io_error
                                                  : DiskFate::torn;
    }
    return DiskFate::normal;
  };
}

void FaultInjector::strike(const Fault& fault, int64_t step) {
  switch (fault.kind) {
    case FaultKind::kill: raise(SIGKILL); break;
    case FaultKind::abort: std::abort();
    case FaultKind::segv: raise(SIGSEGV); break;
    case FaultKind::throw_error: throw Error(fmt::format("step {}: an injected fault ({})", step, fault.text));
    case FaultKind::stop: kill(getpid(), SIGSTOP); break;
    case FaultKind::slow: slow_ = fault.factor; break;
    case FaultKind::nan:
    case FaultKind::inf:
    case FaultKind::bitflip: corrupt_number(fault); break;
    case FaultKind::skip: next_call_ = CallFault::skip; break;
    case FaultKind::extra: next_call_ = CallFault::extra; break;
    case FaultKind::wrong_size: next_call_ = CallFault::wrong_size; break;
    case FaultKind::wrong_type: next_call_ = CallFault::wrong_type; break;
    case FaultKind::oom:
    case FaultKind::enospc:
    case FaultKind::eio:
    case FaultKind::torn_write: break;  // see disk_fault()
  }
}

void FaultInjector::corrupt_number(const Fault& fault) {
  check(targets_.device != nullptr, "a fault without a target");
  const bool gradient = fault.phase == StepPhase::reduce || fault.phase == StepPhase::optimizer;
  const bool loss = !gradient && fault.kind != FaultKind::bitflip;
  const Tensor target = gradient ? targets_.gradient : loss ? targets_.loss : targets_.weight;
  check(target && target.numel() > 0, fault.text + ": this rank holds no such number");
  const Tensor first = target.view({target.numel()}).slice(0, 1);
  std::array<std::byte, 4> bytes{};
  targets_.device->copy_to_host(first, bytes.data(), *targets_.stream);
  targets_.stream->synchronize();
  if (fault.kind == FaultKind::bitflip) {
    bytes[static_cast<size_t>(size_of(first.dtype)) - 1] ^= std::byte{0x04};  // flips an exponent bit
  } else {
    const float value =
        fault.kind == FaultKind::nan ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
    std::memcpy(bytes.data(), &value, sizeof value);
  }
  targets_.device->copy_to_device(bytes.data(), first, *targets_.stream);
  targets_.stream->synchronize();
}

}  // namespace trivet
