// The simulation of replay.h: its state and transitions. replay.cc implements streams and the host; replay_calls.cc
// implements calls and the ports that they share.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <vector>

#include "tools/plan/walk.h"

namespace trivet {

// Work is counted in units of 1 / kFullRate ns at full rate, so that rates are integers.
inline constexpr int64_t kFullRate = int64_t{1} << 16;

// An activity that takes time: a call, or work on a stream.
struct Activity {
  int64_t left = 0;   // units of work that remained at `since`
  int64_t since = 0;  // ns
  int32_t rate = kFullRate;
  uint32_t version = 0;  // of its valid entry in the queue

  // ahead: units of work already done.
  void begin(int64_t ns, int64_t now, int64_t ahead = 0) {
    left = ns * kFullRate - ahead, since = now, rate = kFullRate;
  }
  int64_t end() const { return since + std::max<int64_t>(0, (left + rate - 1) / rate); }
  void set_rate(int64_t next, int64_t now) {
    left -= (now - since) * rate;
    since = now;
    rate = static_cast<int32_t>(next);
  }
  // Units left over for the successor, because the end is rounded up to a whole nanosecond.
  int64_t excess(int64_t now) const { return (now - since) * rate - left; }
};

class Replay {
 public:
  Replay(std::span<const Player> players, const TapeGroups& groups, const ReplayCosts& costs,
         const ReplayOptions& options);
  Replayed play();

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kSends = 0, kReceives = 1;
  enum class State : uint8_t { ready, working, in_call, on_event, on_host, done };
  struct StreamState {
    explicit StreamState(uint32_t of) : rank(of) {}
    uint32_t rank;
    uint32_t next = 0;  // index in Walk::Stream::steps
    State state = State::ready;
    uint8_t calls_left = 0;  // in_call
    uint32_t event = 0;      // on_event: the event's step
    uint32_t end = 0;        // working: the step after the current one
    int64_t ahead = 0;       // units of the next work that are already done when it begins
    int64_t came_ns = 0;     // working, in_call: start of the state
    uint32_t cause = kNone;  // index in causes_: the last activity that it waited for
    Activity activity;
    std::vector<uint32_t> waiters;  // streams that wait for events of this stream
  };
  struct ReplayRank {
    const Walk* walk = nullptr;
    const Player* player = nullptr;
    uint32_t first_stream = 0;                           // index in streams_
    uint32_t first_channel = 0;                          // index in channel_of_lane_
    uint32_t first_cost = 0;                             // index in call_costs_
    uint32_t host_waits = 0;                             // host waits that have ended
    int64_t host_late = 0;                               // total ns by which they delayed the host
    int64_t host_since = 0;                              // end of the last host wait that delayed it
    uint32_t host_cause = kNone;                         // index in causes_: the activity that the wait waited for
    std::vector<uint32_t> calls = {};                    // active calls on its ports
    int64_t compute_rate = kFullRate;                    // while these calls are active
    std::array<std::array<int, 2>, 3> on_port = {};      // [port]: counts of these calls: sending, receiving
    std::array<int64_t, CallCost::kQueues> queues = {};  // ns at which each queue is free
    uint16_t working = 0;                                // streams in State::working
  };
  struct Phase {
    uint32_t stream, record;  // record: that of its begin_phase
    int64_t start_ns;
  };
  struct Member {
    uint32_t stream = 0;
    bool goes_on = false;                // a buffered send: its stream does not wait for it to end
    bool sends = true, receives = true;  // a collective does both
  };
  // An activity that has ended, and the one that it waited for.
  struct Cause {
    PathPart part;
    uint32_t before = kNone;  // index in causes_
  };
  // Calls of one kind, which all members make in the same order (Walk::Lane).
  struct Channel {
    uint32_t expected = 0;             // number of members in each call
    std::vector<uint32_t> calls = {};  // [sequence]: index in calls_
  };
  struct OpenCall {
    Activity activity;
    CallCost cost;
    std::vector<Member> members;  // those that have arrived
    int64_t start_ns = 0;
    int64_t arrival_ns = 0;  // arrival of the last byte, over ports that queue; 0: nothing was sent
    uint32_t cause = kNone;  // index in causes_: the last activity that its last member waited for
    uint32_t channel = 0;
    bool active = false;
  };
  static constexpr uint32_t kCall = uint32_t{1} << 31;  // in Due::what: the number is a call's, else a stream's
  struct Due {
    int64_t time;
    uint32_t what;
    uint32_t version;  // the activity's version when queued: stale if the activity has a newer one
    bool operator>(const Due& other) const { return time != other.time ? time > other.time : what > other.what; }
  };

  void add_channels(std::span<const Player> players);
  uint32_t local(uint32_t stream) const { return stream - rank_of(stream).first_stream; }
  ReplayRank& rank_of(uint32_t stream) { return ranks_[streams_[stream].rank]; }
  const ReplayRank& rank_of(uint32_t stream) const { return ranks_[streams_[stream].rank]; }
  void set_due(Activity& activity, uint32_t what, int64_t time) { due_.push({time, what, ++activity.version}); }
  void set_due(Activity& activity, uint32_t what) { set_due(activity, what, activity.end()); }
  void end_due(const Due& due);
  void make_ready(uint32_t stream) {
    streams_[stream].state = State::ready;
    ready_.push_back(stream);
  }
  void go_on(uint32_t stream);
  bool take(uint32_t stream, const Walk::Step& step);
  bool begin_work(uint32_t stream);
  bool wait_for_event(uint32_t stream, const Walk::Step& step);
  void passed(uint32_t stream, uint32_t event);
  void arrive(uint32_t stream, const Walk::Step& step);
  uint32_t open_call(const ReplayRank& rank, const Walk::Step& step);
  static void count(ReplayRank& rank, Port port, const Member& member, int by);
  void start_call(uint32_t number);
  void end_call(uint32_t number);
  int64_t send(ReplayRank& rank, const CallCost& cost);
  void set_wire(ReplayRank& rank);
  void set_cores(uint32_t stream, bool works);
  void share_ports(uint32_t changed);
  void set_call_rate(uint32_t number);
  void add_span(uint32_t stream, uint32_t record, int64_t start_ns, int64_t wire_start_ns);
  void trace_phase(uint32_t stream, const Walk::Step& step);
  uint32_t add_cause(uint32_t rank, uint32_t record, int64_t start_ns, uint32_t before);
  uint32_t cause_of(const OpenCall& call);
  void trace_path();
  [[noreturn]] void fail_stuck() const;

  const TapeGroups& groups_;
  const ReplayCosts& costs_;
  const ReplayOptions& options_;
  const bool buffered_;
  const double slowdown_;
  std::map<const Tape*, std::unique_ptr<Walk>> walks_;
  std::vector<ReplayRank> ranks_;
  std::vector<StreamState> streams_;
  std::vector<Channel> channels_;
  std::vector<uint32_t> channel_of_lane_;  // [ReplayRank::first_channel + lane]
  std::vector<CallCost> call_costs_;       // [ReplayRank::first_cost + index in Tape::calls]; ns < 0: not priced yet
  std::vector<OpenCall> calls_;
  std::vector<uint32_t> on_cores_;                                  // working streams, if ranks share cores
  int64_t busy_threads_ = 0;                                        // total threads of on_cores_
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;  // the earliest first
  std::vector<uint32_t> ready_;                                     // streams that may continue now
  std::vector<std::vector<Phase>> phases_;                          // [rank]: open phases
  std::vector<Cause> causes_;           // of the last step, if the critical path is requested
  std::vector<uint32_t> cause_of_end_;  // [rank]: index in causes_ at its last mark
  int64_t now_ = 0;
  Replayed result_;
};

}  // namespace trivet
