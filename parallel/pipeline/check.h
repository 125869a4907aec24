// Checks whether a schedule is valid:
//
//   1. Every op is in range, and every (stage, micro-batch) has exactly one F and either one B or one I and one W.
//   2. On every rank F comes before B or I, and I before W.
//   3. On every channel messages are received in the order in which they are sent, so one FIFO per channel is enough.
//   4. It runs to its end with channels of unlimited depth, which covers the dependencies between ranks.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace trivet {

// One line per problem; empty: the schedule is valid.
std::vector<std::string> find_problems(const Schedule& schedule);

// Throws ConfigError with all problems, prefixed with `place`, e.g. "FILE: ".
void check_schedule(const Schedule& schedule, std::string_view place = {});

// The depth that all channels of a schedule need. A channel of depth d holds d messages between the end of the sending
// op and the start of the receiving op; when full, it blocks its sender. Interleaved schedules with groups of N > p
// micro-batches run ahead on the first chunk and need N - p + 1; all others but interleaved-bfs need 1. 0: no messages.
struct ChannelDepths {
  int safe = 0;    // the smallest without a deadlock
  int smooth = 0;  // the smallest that costs no time when all ops cost the same
};
// REQUIRES: find_problems() is empty
ChannelDepths channel_depths(const Schedule& schedule);
int safe_channel_depth(const Schedule& schedule);  // ChannelDepths::safe alone: much faster

// True if every stage adds its weight gradients in micro-batch order, as a single rank would: then the sums are bitwise
// the same.
bool gradients_in_order(const Schedule& schedule);

// The messages of a channel, as the ops that send and receive them, in program order.
struct Traffic {
  std::vector<Op> sent, received;
};
std::map<Channel, Traffic> traffic_of(const Schedule& schedule);

}  // namespace trivet
