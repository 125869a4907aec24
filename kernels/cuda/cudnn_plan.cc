#include "kernels/cuda/cudnn_plan.h"

#include <map>
#include <utility>

namespace trivet {
namespace {

using Place = GraphTensor::Place;

// From 9.16 on the backward pass takes sequences that are no multiple of 128 without a mask of their own.
constexpr size_t kOldest = 91600;

cudnnDataType_t cudnn_type(GraphTensor::Type type) {
  switch (type) {
    case GraphTensor::Type::f32: return CUDNN_DATA_FLOAT;
    case GraphTensor::Type::bf16: return CUDNN_DATA_BFLOAT16;
    case GraphTensor::Type::i32: return CUDNN_DATA_INT32;
    case GraphTensor::Type::boolean: return CUDNN_DATA_BOOLEAN;
  }
  fail("a graph's tensor without a type");
}

// The mode of an operation that is computed element by element.
cudnnPointwiseMode_t pointwise_mode(GraphOp op) {
  static const std::map<GraphOp, cudnnPointwiseMode_t> kModes = {{GraphOp::copy, CUDNN_POINTWISE_IDENTITY},
                                                                 {GraphOp::multiply, CUDNN_POINTWISE_MUL},
                                                                 {GraphOp::divide, CUDNN_POINTWISE_DIV},
                                                                 {GraphOp::add, CUDNN_POINTWISE_ADD},
                                                                 {GraphOp::subtract, CUDNN_POINTWISE_SUB},
                                                                 {GraphOp::exp, CUDNN_POINTWISE_EXP},
                                                                 {GraphOp::log, CUDNN_POINTWISE_LOG},
                                                                 {GraphOp::row_index, CUDNN_POINTWISE_GEN_INDEX},
                                                                 {GraphOp::column_index, CUDNN_POINTWISE_GEN_INDEX},
                                                                 {GraphOp::at_least, CUDNN_POINTWISE_CMP_GE},
                                                                 {GraphOp::select, CUDNN_POINTWISE_BINARY_SELECT}};
  return kModes.at(op);
}

// Names a tensor in the graph and in what is run; counts from 1.
int64_t id_of(int tensor) { return tensor + 1; }

}  // namespace

// The system's file, or else the one that the build found.
CudnnLibrary::CudnnLibrary() : file_("cuDNN", {"libcudnn.so." + std::to_string(CUDNN_MAJOR), TRIVET_CUDNN_LIBRARY}) {
  if (get_version() < kOldest)
    throw ConfigError("the cuDNN that was loaded is " + version() + ", expected 9.16 or newer");
}

std::string CudnnLibrary::version() const {
  const size_t v = get_version();
  return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
}

std::string CudnnLibrary::last_error() const {
  char text[1024] = {};
  get_last_error(text, sizeof text);
  return text;
}

void CudnnLibrary::check(cudnnStatus_t status, const char* call, std::source_location at) const {
  if (status == CUDNN_STATUS_SUCCESS) return;
  const std::string reason = last_error();
  fail(std::string(call) + ": " + status_text(status) + (reason.empty() ? "" : ": " + reason), at);
}

CudnnPlan::CudnnPlan(const CudnnLibrary& library, const AttentionGraph& graph, cudnnHandle_t handle,
                     const std::string& device)
    : library_(library) {
  lower(graph);
  graph_ = &make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph_->set_all(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, operations_);
  if (handle) graph_->set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
  graph_->finalize();
  choose_engine(handle, device);
}

CudnnDescriptor& CudnnPlan::make(cudnnBackendDescriptorType_t type) {
  return *descriptors_.emplace_back(std::make_unique<CudnnDescriptor>(library_, type));
}

void CudnnPlan::lower(const AttentionGraph& graph) {
  std::vector<const CudnnDescriptor*> tensors(graph.tensors.size());
  const auto tensor = [&](int index) -> const CudnnDescriptor& {
    const CudnnDescriptor*& known = tensors[static_cast<size_t>(index)];
    if (known) return *known;
    const GraphTensor& t = graph.tensors[static_cast<size_t>(index)];
    CudnnDescriptor& desc = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    desc.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, cudnn_type(t.type));
    desc.set_all(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, t.size);
    desc.set_all(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, t.stride);
    desc.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id_of(index));
    desc.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t{16});
    desc.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, t.place == Place::between);
    desc.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, t.place == Place::number);
    desc.finalize();
    if (t.place == Place::memory) memory_.push_back(index);
    if (t.place == Place::number) {
      number_tensors_.push_back(index);
      numbers_.push_back(t.value);
    }
    return *(known = &desc);
  };

  // An operation on these tensors, but for those that it does not have (-1); `how`, if any, says more about it.
  using Attribute = cudnnBackendAttributeName_t;
  const auto add = [&](cudnnBackendDescriptorType_t type, Attribute how_name, CudnnDescriptor* how,
                       std::initializer_list<std::pair<Attribute, int>> on) {
    CudnnDescriptor& operation = make(type);
    if (how) {
      how->finalize();
      operation.set(how_name, *how);
    }
    for (const auto& [name, index] : on)
      if (index >= 0) operation.set(name, tensor(index));
    operation.finalize();
    operations_.push_back(operation.raw());
  };
  for (const GraphStep& step : graph.steps) {
    if (step.op == GraphOp::matmul) {
      CudnnDescriptor& how = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
      how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
      add(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_DESC, &how,
          {{CUDNN_ATTR_OPERATION_MATMUL_ADESC, step.x},
           {CUDNN_ATTR_OPERATION_MATMUL_BDESC, step.y},
           {CUDNN_ATTR_OPERATION_MATMUL_CDESC, step.out}});
    } else if (step.op == GraphOp::row_max || step.op == GraphOp::row_sum || step.op == GraphOp::head_sum) {
      CudnnDescriptor& how = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
      how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
              step.op == GraphOp::row_max ? CUDNN_REDUCE_TENSOR_MAX : CUDNN_REDUCE_TENSOR_ADD);
      how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
      add(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_DESC, &how,
          {{CUDNN_ATTR_OPERATION_REDUCTION_XDESC, step.x}, {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, step.out}});
    } else if (step.op == GraphOp::reshape) {
      add(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, {}, nullptr,
          {{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, step.x}, {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, step.out}});
    } else {
      CudnnDescriptor& how = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
      how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, pointwise_mode(step.op));
      how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE,
              step.op == GraphOp::at_least ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT);
      if (step.op == GraphOp::row_index) how.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, int64_t{2});
      if (step.op == GraphOp::column_index) how.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, int64_t{3});
      add(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &how,
          {{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, step.x},
           {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, step.y},
           {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, step.condition},
           {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, step.out}});
    }
  }
}

void CudnnPlan::choose_engine(cudnnHandle_t handle, const std::string& device) {
  CudnnDescriptor* properties = nullptr;
  if (!handle) {
    properties = &make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    properties->set_all(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, device);
    properties->finalize();
  }
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK})
    if (try_engines(mode, handle, properties)) return;
  throw ConfigError("cuDNN " + library_.version() + " has no kernel for it" +
                    (refusals_.empty() ? "" : " (" + refusals_ + ")"));
}

bool CudnnPlan::try_engines(cudnnBackendHeurMode_t mode, cudnnHandle_t handle, const CudnnDescriptor* device) {
  CudnnDescriptor heuristics(library_, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, *graph_);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  if (device) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *device);
  if (heuristics.try_finalize() != CUDNN_STATUS_SUCCESS) {
    refusals_ = library_.last_error();
    return false;
  }
  const auto results = [&](int64_t most, void* to) {
    return heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, to);
  };
  int64_t count = results(0, nullptr);
  std::vector<CudnnDescriptor*> configs;
  std::vector<cudnnBackendDescriptor_t> found;
  for (int64_t i = 0; i < count; ++i)
    found.push_back(configs.emplace_back(&make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR))->raw());
  if (count > 0) count = results(count, found.data());
  for (int64_t i = 0; i < count; ++i) {  // as many as there are: those that cannot be are left out
    CudnnDescriptor& config = *configs[static_cast<size_t>(i)];
    CudnnDescriptor& plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (handle) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle);
    if (device) plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *device);
    if (plan.try_finalize() != CUDNN_STATUS_SUCCESS) {
      refusals_ = library_.last_error();
      continue;
    }
    plan_ = &plan;
    workspace_bytes_ = plan.get_int64(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
    CudnnDescriptor engine(library_, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendDescriptor_t raw = engine.raw();
    config.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
    engine_ = engine.get_int64(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
    return true;
  }
  return false;
}

void CudnnPlan::run(cudnnHandle_t handle, std::span<void* const> memory, std::byte* workspace) const {
  std::vector<int64_t> ids;
  std::vector<const void*> data;
  for (const int tensor : memory_) {
    ids.push_back(id_of(tensor));
    data.push_back(memory[static_cast<size_t>(tensor)]);
  }
  for (size_t i = 0; i < numbers_.size(); ++i) {
    ids.push_back(id_of(number_tensors_[i]));
    data.push_back(&numbers_[i]);
  }
  CudnnDescriptor pack(library_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set_all(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids);
  pack.set_all(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, data);
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize();
  library_.check(library_.execute(handle, plan_->raw(), pack.raw()), "cudnnBackendExecute");
}

}  // namespace trivet
