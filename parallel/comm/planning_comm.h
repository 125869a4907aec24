// A communicator without peers: calls move nothing and never wait, so that one thread can plan any rank of a world of
// any size.
#pragma once

#include <memory>

#include "parallel/comm/comm.h"

namespace trivet {

class PlanningBackEnd : public DeviceBackEnd {
 public:
  using DeviceBackEnd::DeviceBackEnd;
  void enqueue(std::span<const Call>, Stream&) override {}
  void barrier() override {}
  std::shared_ptr<CommBackEnd> split(const std::vector<int>&, CommGroup part) override {
    return part.rank < 0 ? nullptr : std::make_shared<PlanningBackEnd>(std::move(part), device);
  }
  void abort(const std::string&) noexcept override {}
  Failure failure() const override { return {}; }
};

// Rank `rank` of a world of `ranks`, for tensors of `device`, which must outlive it.
inline std::unique_ptr<Communicator> create_planning_communicator(Device& device, int rank, int ranks) {
  return std::make_unique<Communicator>(std::make_shared<PlanningBackEnd>(CommGroup::world(rank, ranks), device));
}

}  // namespace trivet
