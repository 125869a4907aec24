// Check: does a schedule make sense, and can it run?
//
//   1. Every op is in range, and every (stage, micro-batch) has exactly one F and either one B or one I and one W.
//   2. On every rank F comes before B or I, and I before W.
//   3. On every channel messages are taken in the order in which they are made, so one FIFO a channel is enough.
//   4. It runs to its end with channels that hold any number of messages, which covers the dependencies between ranks.
//
// Depth is a question of its own: a channel that holds fewer messages than `min_channel_depth` makes the ranks wait for
// each other in a ring.
#pragma once

#include <string>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace trivet {

// One line a problem; empty: the schedule is good.
std::vector<std::string> find_problems(const Schedule& schedule);

// Throws ConfigError with all problems.
void check_schedule(const Schedule& schedule);

// The smallest number of messages that every channel has to hold so that no rank gets stuck: 1 for all but interleaved
// schedules with large groups. 0: there is no message at all. REQUIRES: find_problems() is empty.
int min_channel_depth(const Schedule& schedule);

// Of a split backward, the queue of weight halves on each rank is first in, first out, over all chunks.
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
