// CudnnPlan: a graph, as cuDNN computes it: lowered to its descriptors, with the first engine of its heuristics that
// takes it. Making one compiles a kernel, which takes about a second.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/attention_graph.h"
#include "kernels/cuda/cudnn_library.h"

namespace trivet {

class CudnnPlan {
 public:
  // For the GPU of `handle`; or, where that is null, for the one that `device` describes in cuDNN's JSON, which need
  // not be here: such a plan can be looked at, not run. The library outlives it. Throws ConfigError with cuDNN's reason
  // where no engine takes the graph.
  CudnnPlan(const CudnnLibrary& library, const AttentionGraph& graph, cudnnHandle_t handle,
            const std::string& device = "");

  int64_t workspace_bytes() const { return workspace_bytes_; }
  int64_t engine() const { return engine_; }  // its number

  // Queues it on the handle's stream. memory: by the index of the tensor, those of the graph that are the caller's.
  void run(cudnnHandle_t handle, std::span<void* const> memory, std::byte* workspace) const;

 private:
  void lower(const AttentionGraph& graph);
  void choose_engine(cudnnHandle_t handle, const std::string& device);
  bool try_engines(cudnnBackendHeurMode_t mode, cudnnHandle_t handle, const CudnnDescriptor* device);
  CudnnDescriptor& make(cudnnBackendDescriptorType_t type);

  const CudnnLibrary& library_;
  // All that the plan is made of, which it does not own.
  std::vector<std::unique_ptr<CudnnDescriptor>> descriptors_;
  std::vector<cudnnBackendDescriptor_t> operations_;
  CudnnDescriptor *graph_ = nullptr, *plan_ = nullptr;
  std::vector<int> memory_;          // the graph's tensors that are memory
  std::vector<int> number_tensors_;  // and those that are numbers, with
  std::vector<float> numbers_;       // their values
  std::string refusals_;             // of engines that do not take it
  int64_t workspace_bytes_ = 0, engine_ = -1;
};

}  // namespace trivet
