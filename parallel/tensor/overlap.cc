#include "parallel/tensor/overlap.h"

#include <string>

namespace trivet {

TensorOverlap parse_tensor_overlap(std::string_view name) {
  if (name == "none") return TensorOverlap::none;
  if (name == "bulk") return TensorOverlap::bulk;
  if (name == "ring") return TensorOverlap::ring;
  if (name == "pipeline") return TensorOverlap::pipeline;
  throw ConfigError("there is no tensor overlap '" + std::string(name) + "'; there are none, bulk, ring and pipeline");
}

TensorLane::TensorLane(Communicator& tensor, Device& device, Stream& compute, Trace* trace)
    : lanes_(tensor, Category::comm_tensor, device, trace, "tensor", 1),
      lane_(lanes_.next()),
      compute_(compute),
      computed_(device.create_event()) {
  for (size_t i = 0; i < kMarks; ++i) marks_.push_back(device.create_event());
}

Stream& TensorLane::after_compute() {
  compute_.record(*computed_);
  lane_.stream->wait(*computed_);
  return *lane_.stream;
}

Event& TensorLane::mark() {
  Event& event = *marks_[next_++ % kMarks];
  lane_.stream->record(event);
  return event;
}

void TensorLane::join() { compute_.wait(mark()); }

}  // namespace trivet
