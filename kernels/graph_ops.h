// GraphOps: operations that a device repeats as a whole. A step of a small model takes the host longer to queue, call
// by call, than the GPU to run; but its micro-batches make the same calls again and again, and a graph (device.h) of
// hundreds of them costs the host one launch.
//
// While over() runs, the calls on its stream are not handed on, but noted, until something else is to be queued on the
// stream: an event, a wait, a copy, a collective, a phase of the trace, or the end. What has been noted by then is a
// segment. Its key is all that its calls were given: which operations, every address, type and shape, every number.
// A segment whose key is new is queued call by call (a first call may measure algorithms, and take memory); the second
// time it is captured, and from then on its graph is launched. So a graph is never used for anything but the very calls
// that it was made of, whoever makes them and whatever else changes, and the numbers are those of the calls. Where the
// segments end is no matter of right or wrong either: communication, overlapped or not, cuts them by being there.
#pragma once

#include <unordered_map>
#include <vector>

#include "kernels/ops.h"

namespace trivet {

class GraphOps : public Ops {
 public:
  // Both outlive this. most_calls: that are kept, as keys or in graphs; a segment that does not fit in any more is
  // queued call by call for good. REQUIRES: device.captures().
  GraphOps(Ops& ops, Device& device, int64_t most_calls = 100'000);
  ~GraphOps() override;

  void run(const AnyOp& op, Stream& stream) override;

  // Runs f(). Calls on other streams, and those of the optimizer, once a step, go on as they are.
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
    int64_t launches = 0;  // of them
    int64_t replayed = 0;  // calls that were queued by these
    int64_t calls = 0;     // calls in all, of those that were noted
  };
  const Counts& counts() const { return counts_; }

 private:
  // The stream, and of each call its op and all arguments, each as one number or more.
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
  Stream* stream_ = nullptr;  // of the over() that runs
  // The segment that is being noted.
  Key key_;
  std::vector<AnyOp> calls_;
  std::unordered_map<Key, std::unique_ptr<Graph>, Hash> graphs_;  // null: queued once
  int64_t kept_calls_ = 0;                                        // of all keys
  Counts counts_;
};

// graphs->over(stream, f), or f() where there are no graphs (null).
template <class F>
void over(GraphOps* graphs, Stream& stream, F&& f) {
  if (graphs) graphs->over(stream, f);
  else f();
}

}  // namespace trivet
