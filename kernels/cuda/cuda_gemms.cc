#include "kernels/cuda/cuda_gemms.h"

#include <cstdio>
#include <cublasLt.h>
#include <fmt/format.h>
#include <limits>
#include <vector>

#include "kernels/cuda/shared_library.h"

namespace trivet {
namespace {

// The largest power of two up to 256 that divides an address.
int64_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | 256;
  return static_cast<int64_t>(address & (~address + 1));
}

cudaDataType_t cuda_type(DType dtype) {
  if (is_fp8(dtype)) return dtype == DType::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
  return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

// CUBLASLT_MATMUL_DESC_A_SCALE_MODE and _B_SCALE_MODE of cublasLtMatmulDescAttributes_t, in the header from 12.8 on.
constexpr int kAScaleMode = 31, kBScaleMode = 32;

// The mean time in ms of a few runs of the work that queue() queues. The caller has queued it once as a warm-up.
template <class F>
float milliseconds_of(cudaStream_t stream, const F& queue) {
  constexpr int kRuns = 4;
  Handle<cudaEvent_t, cudaEventDestroy> begin, end;
  check_cuda(cudaEventCreate(begin.out()), "cudaEventCreate");
  check_cuda(cudaEventCreate(end.out()), "cudaEventCreate");
  check_cuda(cudaEventRecord(begin, stream), "cudaEventRecord");
  for (int i = 0; i < kRuns; ++i) queue();
  check_cuda(cudaEventRecord(end, stream), "cudaEventRecord");
  check_cuda(cudaEventSynchronize(end), "cudaEventSynchronize");
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
  return milliseconds / kRuns;
}

}  // namespace

// The libcublasLt functions in use, named without the prefix.
struct CudaGemms::Library {
  Library() { check(create(&handle), "cublasLtCreate"); }
  ~Library() { destroy(handle); }

  void check(cublasStatus_t status, const char* call, std::source_location at = std::source_location::current()) const {
    if (status != CUBLAS_STATUS_SUCCESS) fail(std::string(call) + ": " + status_text(status), at);
  }

  // Warns that the GEMM falls back to a slow kernel or a slower type.
  void tell_refusal(const CudaGemm& p, const char* call, cublasStatus_t status) const {
    cudaGetLastError();            // otherwise the next launch would report it
    if (p.has_epilogue()) return;  // falls back to separate kernels, but the library still runs the GEMM
    const std::string line =
        fmt::format("trivet: {}: {}: GEMMs of {} x {} x {} in {} take {}\n", call, status_text(status), p.m, p.n, p.k,
                    name_of(p.dtype), is_fp8(p.dtype) ? "bf16" : "Trivet's own slow kernel");
    std::fputs(line.c_str(), stderr);
  }

  // Owns what make() creates.
  template <class T>
  using Owned = std::unique_ptr<std::remove_pointer_t<T>, cublasStatus_t (*)(T)>;
  template <class T, class... Arguments>
  Owned<T> make(cublasStatus_t (*create)(T*, Arguments...), cublasStatus_t (*destroy)(T), const char* call,
                std::type_identity_t<Arguments>... arguments) const {
    T made = nullptr;
    check(create(&made, arguments...), call);
    return {made, destroy};
  }

  const SharedLibrary file{"cuBLASLt", {TRIVET_CUBLAS_LT}, Lack::gpu};  // the file name is set by the build
  cublasLtHandle_t handle = nullptr;
  const decltype(&cublasLtCreate) create = file["cublasLtCreate"];
  const decltype(&cublasLtDestroy) destroy = file["cublasLtDestroy"];
  const decltype(&cublasLtGetVersion) version = file["cublasLtGetVersion"];
  const decltype(&cublasLtGetStatusString) status_text = file["cublasLtGetStatusString"];
  const decltype(&cublasLtMatmulDescCreate) desc_create = file["cublasLtMatmulDescCreate"];
  const decltype(&cublasLtMatmulDescDestroy) desc_destroy = file["cublasLtMatmulDescDestroy"];
  const decltype(&cublasLtMatmulDescSetAttribute) desc_set = file["cublasLtMatmulDescSetAttribute"];
  const decltype(&cublasLtMatrixLayoutCreate) layout_create = file["cublasLtMatrixLayoutCreate"];
  const decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = file["cublasLtMatrixLayoutDestroy"];
  const decltype(&cublasLtMatmulPreferenceCreate) preference_create = file["cublasLtMatmulPreferenceCreate"];
  const decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = file["cublasLtMatmulPreferenceDestroy"];
  const decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = file["cublasLtMatmulPreferenceSetAttribute"];
  const decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = file["cublasLtMatmulAlgoGetHeuristic"];
  const decltype(&cublasLtMatmul) matmul = file["cublasLtMatmul"];
};

// A shape's descriptors and the chosen algorithm. cuBLASLt is column-major: to it, row-major c = a b is
// c^T = b^T a^T, so b is its first operand, and the bias runs along the rows, as it requires.
struct CudaGemms::Plan {
  Plan(const Library& library, const CudaGemm& p, bool tf32) : library(library) {
    const cublasComputeType_t compute =
        p.dtype == DType::f32 && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    desc = library.make(library.desc_create, library.desc_destroy, "cublasLtMatmulDescCreate", compute, CUDA_R_32F);
    const cublasOperation_t first = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(CUBLASLT_MATMUL_DESC_TRANSA, first);
    set(CUBLASLT_MATMUL_DESC_TRANSB, second);
    // The library's GELU is the tanh form, like ours. With DGELU it could also sum the bias gradient (DGELU_BGRAD), but
    // only overwrite it, in c's type: it would be rounded to bf16 before being added to the fp32 gradient. Also, the
    // sum belongs to the half of the backward pass that a schedule may defer. So the weight gradient's GEMM computes
    // it: its c is fp32, and the operand to sum, our a, is the library's second (BGRADB).
    if (p.pre_activation)
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX);
    else if (p.activation_backward) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DGELU);
    else if (p.bias) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    else if (p.bias_grad) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BGRADB);
    if (p.bias || p.bias_grad)
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, is_fp8(p.dtype) ? CUDA_R_16BF : cuda_type(p.c_dtype));
    if (p.fast) set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
    if (p.has_activation()) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.n);  // it has c's layout and type
    for (const auto& [attribute, mode] : {std::pair(kAScaleMode, p.b_mode), std::pair(kBScaleMode, p.a_mode)})
      if (mode == ScaleMode::vectors || mode == ScaleMode::squares)
        set(static_cast<cublasLtMatmulDescAttributes_t>(attribute), mode);
    point_at(p);
    const auto layout = [&](DType dtype, int64_t rows, int64_t columns) {
      return library.make(library.layout_create, library.layout_destroy, "cublasLtMatrixLayoutCreate", cuda_type(dtype),
                          static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows);
    };
    b = layout(p.b_dtype, p.transpose_b ? p.k : p.n, p.transpose_b ? p.n : p.k);
    a = layout(p.dtype, p.transpose_a ? p.m : p.k, p.transpose_a ? p.k : p.m);
    c = layout(p.c_dtype, p.n, p.m);
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    library.check(library.desc_set(desc.get(), attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  }
  // Sets the pointers that the descriptor holds.
  void point_at(const CudaGemm& p) {
    if (p.b_scale) set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.b_scale);
    if (p.a_scale) set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.a_scale);
    if (p.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    if (p.bias_grad) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias_grad);
    if (p.pre_activation) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.pre_activation);
    if (p.activation_backward) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.activation_backward);
  }
  static const void* added(const CudaGemm& p) { return p.residual ? p.residual : p.c; }
  // out: the destination; p.c except in trials.
  cublasStatus_t run(const CudaGemm& p, const cublasLtMatmulAlgo_t& with, void* out, std::byte* workspace,
                     cudaStream_t stream) const {
    const float alpha = 1, beta = p.accumulate || p.residual ? 1 : 0;
    return library.matmul(library.handle, desc.get(), &alpha, p.b, b.get(), p.a, a.get(), &beta, added(p), c.get(), out,
                          c.get(), &with, workspace, kWorkspaceBytes, stream);
  }

  // The library's proposals, best first by its own estimate.
  std::vector<cublasLtMatmulHeuristicResult_t> proposals(const CudaGemm& p, int most) const {
    if (p.a_mode == ScaleMode::foreign || p.b_mode == ScaleMode::foreign) {
      library.tell_refusal(p, "block scales need k % 16 == 0, and parts along k of multiples of 128",
                           CUBLAS_STATUS_NOT_SUPPORTED);
      return {};
    }
    const auto preference =
        library.make(library.preference_create, library.preference_destroy, "cublasLtMatmulPreferenceCreate");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      library.check(library.preference_set(preference.get(), attribute, &value, sizeof value),
                    "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<size_t>(kWorkspaceBytes));
    // A sum that is split over blocks (split-K) is reduced in fp32, never in c's own type.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(alignment_of(p.b)));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(alignment_of(p.a)));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(alignment_of(added(p))));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(alignment_of(p.c)));
    std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
    int count = 0;
    const cublasStatus_t status = library.heuristic(library.handle, desc.get(), b.get(), a.get(), c.get(), c.get(),
                                                    preference.get(), most, found.data(), &count);
    if (status != CUBLAS_STATUS_SUCCESS) {
      count = 0;
      if (status != CUBLAS_STATUS_NOT_SUPPORTED || is_fp8(p.dtype))
        library.tell_refusal(p, "cublasLtMatmulAlgoGetHeuristic", status);
    }
    found.resize(static_cast<size_t>(count));
    std::erase_if(found, [](const auto& proposal) { return proposal.state != CUBLAS_STATUS_SUCCESS; });
    return found;
  }

  // The time of one GEMM in milliseconds; infinite if it fails to run.
  float trial(const CudaGemm& p, const cublasLtMatmulAlgo_t& with, void* out, std::byte* workspace,
              cudaStream_t stream) const {
    if (run(p, with, out, workspace, stream) != CUBLAS_STATUS_SUCCESS) {
      cudaGetLastError();  // otherwise the next launch would report it
      return std::numeric_limits<float>::infinity();
    }
    return milliseconds_of(stream, [&] { library.check(run(p, with, out, workspace, stream), "cublasLtMatmul"); });
  }

  const Library& library;
  Library::Owned<cublasLtMatmulDesc_t> desc{nullptr, library.desc_destroy};
  Library::Owned<cublasLtMatrixLayout_t> a{nullptr, library.layout_destroy}, b = {nullptr, library.layout_destroy},
                                                                             c = {nullptr, library.layout_destroy};
  bool possible = false;
  cublasLtMatmulAlgo_t algorithm{};
};

CudaGemms::CudaGemms(const CudaOptions& options) : options_(options), library_(std::make_unique<Library>()) {
  check(options.gemm_candidates >= 1, "CudaOptions: gemm_candidates counts from 1");
}
CudaGemms::~CudaGemms() = default;

int64_t CudaGemms::version() const { return static_cast<int64_t>(library_->version()); }

CudaGemms::Key CudaGemms::key_of(const CudaGemm& p) {
  const int flags = p.transpose_a | p.transpose_b << 1 | p.accumulate << 2 | (p.bias != nullptr) << 3 | p.fast << 4 |
                    (p.c_dtype == DType::bf16) << 5 | static_cast<int>(p.dtype) << 10 |
                    static_cast<int>(p.b_dtype) << 14 | (p.pre_activation != nullptr) << 6 |
                    (p.activation_backward != nullptr) << 7 | (p.bias_grad != nullptr) << 8 |
                    (p.residual != nullptr) << 9 | static_cast<int>(p.a_mode) << 18 | static_cast<int>(p.b_mode) << 22;
  int64_t alignments = 0;  // each up to 256
  for (const void* data : {p.a, p.b, static_cast<const void*>(p.c), p.bias_grad ? p.bias_grad : p.bias,
                           p.pre_activation ? p.pre_activation : p.activation_backward, p.residual})
    alignments = alignments * 512 + alignment_of(data);
  return {p.m, p.n, p.k, flags, alignments};
}

std::unique_ptr<CudaGemms::Plan> CudaGemms::make_plan(const CudaGemm& p, const CudaGemmApart* apart,
                                                      std::byte* workspace, cudaStream_t stream) {
  auto plan = std::make_unique<Plan>(*library_, p, options_.tf32);
  const bool tries =
      options_.gemm_candidates > 1 &&
      2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) > options_.trial_operations;
  const auto found = plan->proposals(p, tries ? options_.gemm_candidates : 1);
  plan->possible = !found.empty();
  if (!plan->possible) return plan;
  plan->algorithm = found[0].algo;
  if (!tries || (found.size() == 1 && !apart)) return plan;

  // Trials must not add to c. Without accumulation they may write to c, as the GEMM overwrites it. Memory is allocated
  // in stream order: cudaFree would wait for the whole GPU, including another rank's stream that waits for this rank.
  void* out = p.c;
  if (p.accumulate) {
    const auto bytes = static_cast<size_t>(p.m * p.n * size_of(p.c_dtype));
    if (const cudaError_t status = cudaMallocAsync(&out, bytes, stream); status != cudaSuccess) {
      if (status != cudaErrorMemoryAllocation) check_cuda(status, "cudaMallocAsync");
      cudaGetLastError();  // otherwise the next launch would report it
      return plan;         // no memory: use the library's first choice
    }
  }
  float best = std::numeric_limits<float>::infinity();
  for (const auto& proposal : found)
    if (const float time = plan->trial(p, proposal.algo, out, workspace, stream); time < best) {
      best = time;
      plan->algorithm = proposal.algo;
    }
  if (apart) plan->possible = best < time_of(*apart, p.accumulate ? out : apart->gemm.c, workspace, stream);
  if (out != p.c) check_cuda(cudaFreeAsync(out, stream), "cudaFreeAsync");
  return plan;
}

float CudaGemms::time_of(const CudaGemmApart& apart, void* out, std::byte* workspace, cudaStream_t stream) {
  const Plan& plan = plan_of(apart.gemm, nullptr, workspace, stream);
  if (!plan.possible) return std::numeric_limits<float>::infinity();
  const auto queue = [&] {
    const cublasStatus_t status = plan.run(apart.gemm, plan.algorithm, out, workspace, stream);
    apart.timed_rest();
    return status;
  };
  if (queue() == CUBLAS_STATUS_SUCCESS) return milliseconds_of(stream, queue);
  cudaGetLastError();
  return std::numeric_limits<float>::infinity();
}

CudaGemms::Plan& CudaGemms::plan_of(const CudaGemm& gemm, const CudaGemmApart* apart, std::byte* workspace,
                                    cudaStream_t stream) {
  const Key key = key_of(gemm);
  auto found = plans_.find(key);
  if (found == plans_.end()) found = plans_.emplace(key, make_plan(gemm, apart, workspace, stream)).first;
  found->second->point_at(gemm);
  return *found->second;
}

bool CudaGemms::run(const CudaGemm& gemm, const CudaGemmApart* apart, std::byte* workspace, cudaStream_t stream) {
  // The library's only activation is GELU, possibly with an approximate tanh: good enough for bf16 but not for fp32,
  // which exists for tests. It also requires some alignment of the GELU's input matrix.
  if (gemm.has_activation()) {
    const void* const matrix = gemm.pre_activation ? gemm.pre_activation : gemm.activation_backward;
    const bool both_bf16 = gemm.dtype == DType::bf16 && gemm.c_dtype == DType::bf16;
    if (gemm.activation != Activation::gelu || !both_bf16 || gemm.n % 8 != 0 || alignment_of(matrix) < 16) return false;
  }
  // The library also requires scales to be 16-byte aligned.
  if (is_fp8(gemm.dtype) && std::min(alignment_of(gemm.a_scale), alignment_of(gemm.b_scale)) < 16) return false;
  Plan& plan = plan_of(gemm, apart, workspace, stream);
  if (!plan.possible) return false;
  const cublasStatus_t status = plan.run(gemm, plan.algorithm, gemm.c, workspace, stream);
  if (status == CUBLAS_STATUS_SUCCESS) return true;
  library_->tell_refusal(gemm, "cublasLtMatmul", status);  // the algorithm fails to run
  return plan.possible = false;
}

}  // namespace trivet
