// Check: does a schedule make sense, and can it run?
//
//   1. Every op is in range, and every (stage, micro-batch) has exactly one F and either one B or one I and one W.
//   2. On every rank F comes before B or I, and I before W.
//   3. On every channel messages are taken in the order in which they are made, so one FIFO a channel is enough.
//   4. It runs to its end with channels that hold any number of messages, which covers the dependencies between ranks.
//
// How many messages a channel has to hold is a question of its own: channel_depths.
#pragma once

#include <string>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace trivet {

// One line a problem; empty: the schedule is good.
std::vector<std::string> find_problems(const Schedule& schedule);

// Throws ConfigError with all problems.
void check_schedule(const Schedule& schedule);

// Depths that all channels of a schedule need, where a channel of depth d holds d messages between the end of the op
// that makes one and the start of the op that takes it, and a maker waits for room. Interleaved schedules with groups
// of N > p micro-batches run ahead on the first chunk: N - p + 1 is enough for them; all others but interleaved-bfs
// need 1. 0: there is no message at all.
struct ChannelDepths {
  int safe = 0;    // the smallest with which no rank gets stuck: with less, ranks wait for each other in a ring
  int smooth = 0;  // the smallest with which, all ops costing the same, no rank is later than with deep channels
};
// REQUIRES: find_problems() is empty
ChannelDepths channel_depths(const Schedule& schedule);
int safe_channel_depth(const Schedule& schedule);  // ChannelDepths::safe alone, which is found much faster

// Weight halves run in the order of their input halves on each rank, over all its chunks: one FIFO queue a rank.
bool weight_halves_in_order(const Schedule& schedule);

// Every stage adds its weight gradients in the order of micro-batches, as one rank alone would: then the sums are
// bitwise the same.
bool gradients_in_order(const Schedule& schedule);

// The messages of every channel in the order in which their makers, or their takers, come in the programs.
struct Traffic {
  Channel channel;
  std::vector<Op> sent;   // the ops of `from` that make them
  std::vector<Op> taken;  // the ops of `to` that take them
};
std::vector<Traffic> traffic_of(const Schedule& schedule);

}  // namespace trivet
