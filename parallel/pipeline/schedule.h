// Schedule: what every pipeline rank does in one step and in which order, as plain data.
//
// Generators (make_schedule) or a file (parse_schedule) produce it, check.h validates it, simulate.h times it, render.h
// draws it, and the executor runs it. A rank's program is a list of ops; sends and receives follow from the ops and the
// stage map (`receives`, `sends`).
//
// Text form, one line per rank; "F3.1" is micro-batch 3 of chunk 1, '#' starts a comment; the header, the "rank:"
// prefixes and a chunk of 0 are optional:
//
//     schedule kind=1f1b p=2 m=3 v=1 map=interleaved
//     0: F0 F1 B0 F2 B1 B2
//     1: F0 B0 F1 B1 F2 B2
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace trivet {

// A backward pass is one B, or its two halves: I computes the gradient of the stage's input, which the previous stage
// waits for; W computes the gradients of the weights, which only the optimizer needs.
enum class OpKind : uint8_t { forward, backward, backward_input, backward_weight };
const char* letter_of(OpKind kind);  // F, B, I, W

struct Op {
  OpKind kind = OpKind::forward;
  int microbatch = 0;
  int chunk = 0;  // which of the rank's model chunks
  bool operator==(const Op&) const = default;
};
std::string to_string(const Op& op, bool with_chunk);

using Program = std::vector<Op>;

// The stage of chunk c on rank r (p ranks, v chunks per rank, p v stages):
//   interleaved: c p + r. Every rank's chunk c feeds the next rank's, and the last rank's feeds rank 0's chunk c+1.
//   v_shaped:    c p + r for even c, (c+1) p - 1 - r for odd c: there and back, so the turn stays on one rank.
enum class StageMap : uint8_t { interleaved, v_shaped };

// A channel is a directed pair of ranks and a kind of payload. One FIFO per channel is enough for every schedule that
// check_schedule() accepts: consumers take messages in the order in which producers send them.
enum class Payload : uint8_t { activation, gradient };
struct Channel {
  int from = 0;
  int to = 0;
  Payload payload = Payload::activation;
  auto operator<=>(const Channel&) const = default;
};
std::string to_string(const Channel& channel);  // "pp 0 -> pp 1 (activations)": positions in the pipeline

struct Schedule {
  std::string kind = "custom";
  int p = 1;  // pipeline ranks
  int m = 1;  // micro-batches per step
  int v = 1;  // model chunks per rank
  StageMap map = StageMap::interleaved;
  std::optional<int> group_size{};  // interleaved: consecutive micro-batches of one chunk
  std::vector<Program> programs{};  // [p]

  int stages() const { return p * v; }
  int stage_of(int rank, int chunk) const;
  int rank_of(int stage) const;
  int chunk_of(int stage) const { return stage / p; }

  // The channel that brings the input of `op` on `rank`, or takes its result. Empty at the ends of the model, for
  // backward_weight, and where the neighbouring stage is on the same rank.
  std::optional<Channel> receives(int rank, const Op& op) const { return channel(rank, op, false); }
  std::optional<Channel> sends(int rank, const Op& op) const { return channel(rank, op, true); }
  std::optional<Channel> channel(int rank, const Op& op, bool sends) const;

  bool operator==(const Schedule&) const = default;
};

// ---- text

std::string to_text(const Schedule& schedule);
// Without a header p, m and v follow from the lines and the map is interleaved. Checks the syntax only (check.h does
// the rest). Throws ConfigError "name:line:column: 'token': …".
Schedule parse_schedule(std::string_view text, std::string_view name);
Schedule read_schedule_file(const std::string& path);  // throws IoError too

// ---- slots

// Storage for a rank's activations of the micro-batches in flight. F takes a slot, which B or W frees. I takes a
// stash for what W needs besides the slot (the gradients of the layers' outputs); W frees it. Both are numbered from 0
// in pools; the lowest free one is taken, so no pool is larger than its peak.
enum class SlotPool : uint8_t {
  per_chunk,  // one pool per chunk: chunks may have slots of different sizes
  shared,     // one pool for all chunks: the fewest slots
};
struct SlotPlan {
  std::vector<int> slot;     // of each op of the program, in its pool
  std::vector<int> stash;    // of each I and W, in its pool; -1 for F and B
  std::vector<int> slots;    // [pool] number of slots
  std::vector<int> stashes;  // [pool] number of stashes
};
// Throws Error for an op whose F (or I) is missing.
SlotPlan plan_slots(const Program& program, int chunks, SlotPool pool);

// ---- generators

struct ScheduleRequest {
  std::string kind = "1f1b";  // one of schedule_kinds()
  int p = 1;
  int m = 1;
  std::optional<int> v{};           // empty: 2 where the kind has chunks, else 1
  std::optional<int> group_size{};  // interleaved only; empty: the smallest that works, p where p divides m
};
enum class Chunks : uint8_t { one, several, two_in_a_v };  // per rank
struct ScheduleKind {
  std::string_view name;
  std::string_view summary;
  Chunks chunks;
  Program (*program)(const Schedule& schedule, int rank);  // for a schedule with all numbers set
};
std::span<const ScheduleKind> schedule_kinds();

// A request that cannot be met; `part` is the impossible part.
struct ScheduleError : ConfigError {
  enum Part { kind, micro_batches, chunks, group_size };
  ScheduleError(Part of, const std::string& what) : ConfigError(what), part(of) {}
  Part part;
};
// Throws ScheduleError naming the values that conflict and what would work.
Schedule make_schedule(const ScheduleRequest& request);

}  // namespace trivet
