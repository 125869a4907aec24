// The generators. The schedules with whole backward passes differ in only two things: the order in which a rank
// runs its micro-batches, and how many forwards precede its first backward (`warm_up`). The zero-bubble schedules
// split the backward pass and use its weight half to fill waits.
//
//   gpipe, 1f1b          Huang et al. 2019; Narayanan et al. 2021 (PipeDream-flush)
//   interleaved          Narayanan et al. 2021b, with Megatron's microbatch_group_size_per_vp_stage
//   interleaved-bfs      Lamy-Poirier 2023 (breadth-first)
//   zb-h1, zb-h2, zb-v   Qi et al. 2024, 2024b
//   dualpipe-v           DeepSeek-AI 2025
#include <algorithm>
#include <array>
#include <deque>
#include <fmt/format.h>

#include "base/check.h"
#include "parallel/pipeline/schedule.h"

namespace trivet {
namespace {

// ---- whole backward passes

// Groups of `group` micro-batches. Each group passes through the chunks one after the other; backward passes run from
// the last chunk to the first. group = m is breadth-first; v = 1 is plain 0, 1, 2, …
std::vector<Op> order(OpKind kind, int m, int v, int group) {
  std::vector<Op> ops;
  for (int first = 0; first < m; first += group)
    for (int c = 0; c < v; ++c)
      for (int i = first; i < std::min(first + group, m); ++i)
        ops.push_back({kind, i, kind == OpKind::forward ? c : v - 1 - c});
  return ops;
}

// `warm_up` forwards, then forwards and backwards alternately, then the remaining backwards.
// GPipe: warm_up = m v. 1F1B: p - 1 - r, one fewer on each later rank.
Program fused(const Schedule& s, int group, int warm_up) {
  const std::vector<Op> forwards = order(OpKind::forward, s.m, s.v, group);
  const std::vector<Op> backwards = order(OpKind::backward, s.m, s.v, group);
  auto forward = forwards.begin() + std::min(warm_up, s.m * s.v);
  auto backward = backwards.begin();
  Program program(forwards.begin(), forward);
  while (forward != forwards.end()) {
    program.push_back(*forward++);
    program.push_back(*backward++);
  }
  program.insert(program.end(), backward, backwards.end());
  return program;
}

// ---- split backward passes

// Builds a program with split backward passes: weight halves queue in the order of their input halves.
class SplitProgram {
 public:
  explicit SplitProgram(int m) : m_(m) {}
  void forward(int chunk) { add({OpKind::forward, f_[chunk]++, chunk}); }
  void backward(int chunk) { add({OpKind::backward, b_[chunk]++, chunk}); }
  void backward_input(int chunk) {
    const Op op{OpKind::backward_input, b_[chunk]++, chunk};
    add(op);
    waiting_.push_back({OpKind::backward_weight, op.microbatch, chunk});
  }
  void oldest_backward_weight() {
    if (waiting_.empty()) return;
    add(waiting_.front());
    waiting_.pop_front();
  }
  void input_and_oldest_weight_half(int chunk) {
    backward_input(chunk);
    oldest_backward_weight();
  }
  int waiting() const { return static_cast<int>(waiting_.size()); }
  int forwards(int chunk) const { return f_[chunk]; }
  int backwards(int chunk) const { return b_[chunk]; }
  Program finish() {
    while (waiting() > 0) oldest_backward_weight();
    return std::move(program_);
  }

 private:
  // Generators may add more than m micro-batches; those beyond m are dropped.
  void add(const Op& op) {
    if (op.microbatch < m_) program_.push_back(op);
  }
  int m_;
  std::array<int, 2> f_{}, b_{};  // micro-batches of each chunk so far
  std::deque<Op> waiting_;
  Program program_;
};

// k = 1 is ZB-H1, k = 2 is ZB-H2: k (p-1-r) forwards of warm-up, and weight halves run k r micro-batches late, so that
// k (p-1) + 1 micro-batches are in flight on every rank and the last rank fills its drain with weight halves.
Program zero_bubble_h(int p, int m, int r, int k) {
  SplitProgram program(m);
  for (int i = 0; i < std::min(k * (p - 1 - r), m); ++i) program.forward(0);
  for (int i = 0; i < m; ++i) {
    program.forward(0);
    program.backward_input(0);
    if (program.waiting() > k * r) program.oldest_backward_weight();
  }
  return program.finish();
}

// V-shaped, two chunks: the rank that starts a micro-batch also finishes it.
Program zero_bubble_v(int p, int m, int r) {
  SplitProgram program(m);
  const int n = std::max(m, 2 * p - 1);  // fewer micro-batches run in the same order, with gaps
  const auto repeat = [](int times, auto&& body) {
    for (int i = 0; i < times; ++i) body();
  };
  const auto whole_of_chunk_1 = [&] {
    program.forward(1);
    program.input_and_oldest_weight_half(1);
  };
  repeat(2 * (p - r) - 1, [&] { program.forward(0); });
  repeat(r, [&] {
    program.forward(1);
    program.forward(0);
  });
  repeat(p - r, whole_of_chunk_1);
  while (program.forwards(1) < n) {
    if (program.forwards(0) < n) program.forward(0);
    program.input_and_oldest_weight_half(0);
    whole_of_chunk_1();
  }
  repeat(r, [&] {
    program.backward_input(0);
    program.backward_input(1);
  });
  repeat(p - r, [&] { program.input_and_oldest_weight_half(0); });
  return program.finish();
}

// V-shaped, two chunks. DeepSeek's engine runs the pairs "forward, backward" of the steady phase as one interleaved
// kernel sequence; here they are two ops, one after the other.
Program dualpipe_v(int p, int m, int r) {
  SplitProgram program(m);
  const int late = p - 1 - r;  // ranks between this one and the turn of the V
  for (int i = 0; i < 2 * late; ++i) program.forward(0);
  for (int i = 0; i < r + 1; ++i) {
    program.forward(0);
    program.forward(1);
  }
  for (int i = 0; i < late; ++i) {
    program.input_and_oldest_weight_half(1);
    program.forward(1);
  }
  for (int i = 0; i < m - 2 * p + r + 1; ++i) {
    program.forward(0);
    program.backward(1);
    program.forward(1);
    program.backward(0);
  }
  for (int i = 0; i < late; ++i) {
    program.backward(1);
    program.forward(1);
    program.backward(0);
  }
  // From the middle of the drain on, backward passes are split.
  for (int i = 0; i < r + 1; ++i) {
    const bool odd = r % 2 == 1;
    const int half = (r + 1) / 2;
    if (i > half || (i == half && odd)) program.backward_input(1);
    else program.backward(1);
    if (i >= half) program.backward_input(0);
    else program.backward(0);
  }
  for (int i = 0; i < late; ++i) {
    program.oldest_backward_weight();
    program.backward_input(0);
  }
  return program.finish();
}

// ---- requests

constexpr std::array<ScheduleKind, 9> kKinds{{
    {"gpipe", "all forwards, then all backwards", Chunks::one,
     [](const Schedule& s, int) { return fused(s, s.m, s.m); }},
    {"1f1b", "one forward and one backward pass in turn", Chunks::one,
     [](const Schedule& s, int r) { return fused(s, s.m, s.p - 1 - r); }},
    // The longer warm-up tolerates late gradients, because other forwards run while they are in flight.
    {"1f1b-eager", "1f1b with twice the warm-up: hides transfer latency, holds more activations", Chunks::one,
     [](const Schedule& s, int r) { return fused(s, s.m, 2 * (s.p - 1 - r)); }},
    {"interleaved", "1f1b over v chunks per rank: a bubble v times smaller, v times the transfers", Chunks::several,
     [](const Schedule& s, int r) { return fused(s, *s.group_size, 2 * (s.p - 1 - r) + (s.v - 1) * *s.group_size); }},
    {"interleaved-bfs", "gpipe over v chunks per rank, one chunk after the other", Chunks::several,
     [](const Schedule& s, int) { return fused(s, s.m, s.m * s.v); }},
    {"zb-h1", "split backward, as many activations as 1f1b's first rank", Chunks::one,
     [](const Schedule& s, int r) { return zero_bubble_h(s.p, s.m, r, 1); }},
    {"zb-h2", "split backward, twice the warm-up", Chunks::one,
     [](const Schedule& s, int r) { return zero_bubble_h(s.p, s.m, r, 2); }},
    {"zb-v", "split backward, two chunks in a V", Chunks::two_in_a_v,
     [](const Schedule& s, int r) { return zero_bubble_v(s.p, s.m, r); }},
    {"dualpipe-v", "two chunks in a V, forward and backward passes of different micro-batches in pairs",
     Chunks::two_in_a_v, [](const Schedule& s, int r) { return dualpipe_v(s.p, s.m, r); }},
}};

template <class... Args>
[[noreturn]] void refuse(ScheduleError::Part part, fmt::format_string<Args...> why, Args&&... args) {
  throw ScheduleError(part, fmt::format(why, std::forward<Args>(args)...));
}

// Interleaved: consecutive groups depend on each other over p stages, so a last group of fewer than p micro-batches
// would wait for itself on every chunk.
bool group_works(int p, int m, int group) { return p <= group && group <= m && (m % group == 0 || m % group >= p); }

int smallest_group(int p, int m) {
  int group = p;
  while (!group_works(p, m, group)) ++group;  // m itself works
  return group;
}

int chunks_of(const ScheduleRequest& request, Chunks chunks) {
  const std::string& kind = request.kind;
  const int v = request.v.value_or(chunks == Chunks::one ? 1 : 2);
  if (chunks == Chunks::several && v < 2)
    refuse(ScheduleError::chunks,
           "schedule {} splits a rank's layers into v >= 2 chunks, but v = {}; with one chunk per rank use {}", kind, v,
           kind == "interleaved" ? "1f1b" : "gpipe");
  if (chunks == Chunks::two_in_a_v && v != 2)
    refuse(ScheduleError::chunks,
           "schedule {} has v = 2 chunks per rank, one on the way down the V and one on the way up, but v = {}", kind,
           v);
  if (chunks == Chunks::one && v != 1)
    refuse(ScheduleError::chunks,
           "schedule {} has v = 1 chunk per rank, but v = {}; more chunks: interleaved, interleaved-bfs, or with v = 2 "
           "zb-v and dualpipe-v",
           kind, v);
  return v;
}

int group_of(const ScheduleRequest& request) {
  const int p = request.p, m = request.m;
  if (m < p)
    refuse(
        ScheduleError::micro_batches,
        "schedule interleaved needs m >= p micro-batches, but m = {} and p = {}; interleaved-bfs and 1f1b take any m",
        m, p);
  const int group = request.group_size.value_or(smallest_group(p, m));
  if (group < p || group > m)
    refuse(ScheduleError::group_size,
           "schedule interleaved needs a group size from p = {} to m = {}, but it is {}; {} works", p, m, group,
           smallest_group(p, m));
  if (!group_works(p, m, group))
    refuse(
        ScheduleError::group_size,
        "schedule interleaved with m = {} micro-batches in groups of {} leaves a last group of {}, fewer than p = {}: "
        "its chunks would wait for each other; a group size of {} works, and so does an m that the group size divides",
        m, group, m % group, p, smallest_group(p, m));
  return group;
}

}  // namespace

std::span<const ScheduleKind> schedule_kinds() { return kKinds; }

Schedule make_schedule(const ScheduleRequest& request) {
  const auto& [name, p, m, wanted_v, wanted_group] = request;
  const auto kind =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const ScheduleKind& known) { return known.name == request.kind; });
  if (kind == kKinds.end()) {
    std::string names;
    for (const ScheduleKind& known : kKinds) names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
    refuse(ScheduleError::kind, "there is no schedule '{}'; there are {}", name, names);
  }
  if (p < 1) refuse(ScheduleError::kind, "schedule {} needs p >= 1 pipeline ranks, but p = {}", name, p);
  if (m < 1) refuse(ScheduleError::micro_batches, "schedule {} needs m >= 1 micro-batches, but m = {}", name, m);
  if (wanted_group && name != "interleaved")
    refuse(ScheduleError::group_size, "schedule {} takes no group size (it is {}); interleaved does", name,
           *wanted_group);
  const int v = chunks_of(request, kind->chunks);
  constexpr double kMostPasses = 1e7;  // an op is 12 bytes, and checking or simulating it takes ten times that
  if (const double passes = 1.0 * p * m * v; passes > kMostPasses)
    refuse(ScheduleError::micro_batches,
           "schedule {} of p = {} ranks, m = {} micro-batches and v = {} chunks per rank has {:.3g} forward passes, "
           "expected at most {:.0f}",
           name, p, m, v, passes, kMostPasses);
  if (name == "dualpipe-v" && m < 2 * p)
    refuse(ScheduleError::micro_batches,
           "schedule dualpipe-v needs m >= 2 p = {} micro-batches, but m = {}; zb-v takes any m", 2 * p, m);

  Schedule schedule{.kind = name, .p = p, .m = m, .v = v};
  if (kind->chunks == Chunks::two_in_a_v) schedule.map = StageMap::v_shaped;
  if (name == "interleaved") schedule.group_size = group_of(request);
  for (int rank = 0; rank < p; ++rank) schedule.programs.push_back(kind->program(schedule, rank));
  return schedule;
}

}  // namespace trivet
