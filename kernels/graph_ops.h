// GraphOps: CUDA graphs for the calls that a step repeats. Queuing a step of a small model call by call takes the host
// longer than the GPU takes to run it. But its micro-batches repeat the same calls, and launching a graph (device.h)
// of hundreds of calls costs the host about as much as a single call.
//
// While over() runs, calls on its stream are recorded until something else is queued on the stream (an event, a wait, a
// copy, a collective, a phase of the trace) or over() ends. The calls recorded up to that point form a segment. Its key
// consists of its calls and all their arguments: ops, addresses, types, shapes, numbers. A segment with a new key is
// queued call by call (a first call may time algorithms and allocate memory); the second time, it is captured, and from
// then on its graph is launched. So a graph only ever replays exactly the calls it was captured from, and the end of a
// segment affects only speed.
#pragma once

#include <unordered_map>
#include <vector>

#include "kernels/ops.h"

namespace trivet {

class GraphOps : public Ops {
 public:
  // `ops` and `device` must outlive this. most_calls: the number of calls to keep in keys and graphs; segments beyond
  // that are always queued call by call. REQUIRES: device.captures().
  GraphOps(Ops& ops, Device& device, int64_t most_calls = 100'000);
  ~GraphOps() override;

  void run(const AnyOp& op, Stream& stream) override;

  // Runs f(). Calls on other streams, and calls that occur once per step, are queued immediately.
  template <class F>
  void over(Stream& stream, F&& f) {
    begin(stream);
    try {
      f();
      stream.flush();
    } catch (...) {
      end();
      throw;
    }
    end();
  }

  struct Counts {
    int64_t graphs = 0;    // captured
    int64_t launches = 0;  // of graphs
    int64_t replayed = 0;  // calls that these launches queued
    int64_t calls = 0;     // recorded in total
  };
  const Counts& counts() const { return counts_; }

 private:
  // The stream; then each call's op and arguments, as numbers.
  using Key = std::vector<uint64_t>;
  struct Hash {
    size_t operator()(const Key& key) const;
  };

  void begin(Stream& stream);
  void end();
  void queue_segment();

  Ops& ops_;
  Device& device_;
  const int64_t most_calls_;
  Stream* stream_ = nullptr;  // of the over() in progress
  // The segment that is being recorded.
  Key key_;
  std::vector<AnyOp> calls_;
  std::unordered_map<Key, std::unique_ptr<Graph>, Hash> graphs_;  // null: queued only once so far
  int64_t kept_calls_ = 0;                                        // over all keys
  Counts counts_;
};

// graphs->over(stream, f), or f() if there are no graphs (null).
template <class F>
void over(GraphOps* graphs, Stream& stream, F&& f) {
  if (graphs) graphs->over(stream, f);
  else f();
}

}  // namespace trivet
