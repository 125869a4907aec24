// Lanes: streams beside the compute stream, each with a communicator of its own over one group, so that as many
// collectives may be in flight at once. Collectives take the lanes in turn; all ranks start them in the same order, so
// lane i of every rank runs the same ones.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/base/device.h"
#include "parallel/comm/comm.h"

namespace trivet {

struct Lane {
  std::unique_ptr<Communicator> group;
  std::unique_ptr<Stream> stream;
};

class Lanes {
 public:
  // Collective over `group`. name: of the lanes in the trace.
  Lanes(Communicator& group, Category category, Device& device, Trace* trace, const std::string& name, int count) {
    for (int i = 0; i < count; ++i) {
      const std::string own_name = count == 1 ? name : name + " " + std::to_string(i);
      Lane& lane = lanes_.emplace_back();
      lane.group = group.split(0, group.rank(), own_name, category);
      lane.stream = device.create_side_stream(StreamPriority::high);
      if (trace) lane.stream->set_trace_row(trace->add_row(own_name));
    }
  }
  Lane& next() { return lanes_[turn_++ % lanes_.size()]; }

 private:
  std::vector<Lane> lanes_;
  size_t turn_ = 0;
};

}  // namespace trivet
