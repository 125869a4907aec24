// CudnnPlan: a graph, as cuDNN computes it: lowered to its descriptors, with the first engine of its heuristics that
// takes it. Making one compiles a kernel, which takes about a second.
#pragma once

#include <cudnn.h>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/attention_graph.h"
#include "kernels/cuda/shared_library.h"

namespace trivet {

// The functions of libcudnn that are used, loaded when an instance is made: it is large, and a machine may lack it.
class CudnnLibrary {
  const SharedLibrary file_;

 public:
  // Throws ConfigError where there is none, or one that is too old.
  CudnnLibrary();

  std::string version() const;  // as "9.19.0"
  // The last call's error, as the library tells it.
  std::string last_error() const;
  void check(cudnnStatus_t status, const char* call, std::source_location at = std::source_location::current()) const;

  const decltype(&cudnnGetVersion) get_version = file_["cudnnGetVersion"];
  const decltype(&cudnnGetErrorString) status_text = file_["cudnnGetErrorString"];
  const decltype(&cudnnGetLastErrorString) get_last_error = file_["cudnnGetLastErrorString"];
  const decltype(&cudnnCreate) create = file_["cudnnCreate"];
  const decltype(&cudnnDestroy) destroy = file_["cudnnDestroy"];
  const decltype(&cudnnSetStream) set_stream = file_["cudnnSetStream"];
  const decltype(&cudnnBackendCreateDescriptor) create_descriptor = file_["cudnnBackendCreateDescriptor"];
  const decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = file_["cudnnBackendDestroyDescriptor"];
  const decltype(&cudnnBackendSetAttribute) set_attribute = file_["cudnnBackendSetAttribute"];
  const decltype(&cudnnBackendGetAttribute) get_attribute = file_["cudnnBackendGetAttribute"];
  const decltype(&cudnnBackendFinalize) finalize = file_["cudnnBackendFinalize"];
  const decltype(&cudnnBackendExecute) execute = file_["cudnnBackendExecute"];
};

// One object of cuDNN's graph API, which is made, given attributes, and finalized; finalized, it is not changed any
// more. Belongs to one thread, as its library.
class CudnnDescriptor {
 public:
  // `library` outlives it.
  CudnnDescriptor(const CudnnLibrary& library, cudnnBackendDescriptorType_t type) : library_(&library) {
    library.check(library.create_descriptor(type, &raw_), "cudnnBackendCreateDescriptor");
  }
  ~CudnnDescriptor() {
    if (raw_) library_->destroy_descriptor(raw_);
  }
  CudnnDescriptor(const CudnnDescriptor&) = delete;
  CudnnDescriptor& operator=(const CudnnDescriptor&) = delete;

  cudnnBackendDescriptor_t raw() const { return raw_; }

  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set(name, type, 1, &value);
  }
  template <class T>
  void set_all(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& values) {
    set(name, type, static_cast<int64_t>(values.size()), values.data());
  }
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.raw_);
  }
  void finalize() { library_->check(try_finalize(), "cudnnBackendFinalize"); }
  cudnnStatus_t try_finalize() { return library_->finalize(raw_); }

  // Reads up to `most` values to `to`; returns how many there are.
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t most, void* to) const {
    int64_t count = 0;
    library_->check(library_->get_attribute(raw_, name, type, most, &count, to), "cudnnBackendGetAttribute");
    return count;
  }
  int64_t get_int64(cudnnBackendAttributeName_t name) const {
    int64_t value = 0;
    get(name, CUDNN_TYPE_INT64, 1, &value);
    return value;
  }

 private:
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* values) {
    library_->check(library_->set_attribute(raw_, name, type, count, values), "cudnnBackendSetAttribute");
  }

  const CudnnLibrary* library_;
  cudnnBackendDescriptor_t raw_ = nullptr;
};

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
