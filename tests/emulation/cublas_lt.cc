// The functions of cuBLASLt that Trivet calls (kernels/cuda/cuda_gemms.cc), on the CPU: in a build with emulated CUDA,
// that file loads these. Types and names are those of NVIDIA's own <cublasLt.h>; work is queued on the stream, or added
// to the graph that captures it. The emulation is designed to find mistakes in a caller that falls back if the library
// fails: unknown requests are refused with a status, and an invalid value in a GEMM ends the process. Beyond the
// library's documentation, it refuses requests that only a mistake explains: operands that overlap an output, an
// attribute that the epilogue does not use, an algorithm proposed for another problem, and beta with a GELU. A bias
// gradient (BGRADB) is written in D's type, as in the header, and is never accumulated.
//
// FP8 follows Hopper's rules (compute capability 9.0) in the documentation of cublasLtMatmul; violations are not
// supported. Types: E4M3 and E5M2, not E5M2 with E5M2; C and D both bf16 or both fp32; scales of A and B in fp32, here
// always required, and aligned to 16 bytes, as are all matrices. A is transposed and B is not. k, D's rows and all
// leading dimensions are multiples of 16 bytes; D's columns are free. CUBLAS_COMPUTE_32F; fast accumulation for FP8
// only, which is merely counted, because a GPU's rounding is undocumented. Epilogues: bias only, in bf16 for either D.
// From memory: GELU, BGRADB etc. do not support FP8 operands, and a bias need only be aligned to its type.
//
// Scales of blocks (section "128-element 1D and 128x128 2D Block Scaling"): from version 12.9 on, on GPUs of compute
// capability 9.0; for both operands, not squares for both; N is a multiple of 4, as M is by its 16 bytes. Fast
// accumulation is refused, as PyTorch refuses it, and so are types other than E4M3, which Trivet never asks for.
// Vectors are contiguous along M or N, squares along K with a pitch of a multiple of 4.
//
// Algorithms that the heuristic proposes, in this order; each has its own rounding:
//
//   k odd and below 16        nothing: CUBLAS_STATUS_NOT_SUPPORTED; k = 7: CUBLAS_STATUS_INTERNAL_ERROR
//   k = 9                     `fails` alone
//   a GELU, rows of D % 64    8: `fails` alone; 16: `fails` before the others
//   BGRADB, columns of D % 64 the same, and 24: nothing
//   otherwise                 halves_in_d_type, where the preference allows sums in D's type; whole; one whose
//                             `state` is an error; halves, where the preference allows sums in fp32 and the workspace
//                             suffices; fails, where four or more are requested
//
// An algorithm runs only on operands aligned as the preference promised, or to 16 bytes.
#include <algorithm>
#include <array>
#include <cstring>
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <initializer_list>
#include <memory>

#include "tests/emulation/grid.h"
#include "tests/emulation/lt_gemm.h"
#include "tests/emulation/stream.h"

using trivet::emulation::LtAlgorithm;
using trivet::emulation::LtProduct;
using trivet::emulation::LtScale;

struct cublasLtContext {};

namespace {

struct Descriptor : cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;                   // or the bias gradient
  int32_t bias_type = -1, aux_type = -1;  // -1: D's
  void* aux = nullptr;
  int64_t aux_ld = 0;
  const float *a_scale = nullptr, *b_scale = nullptr;
  LtScale a_mode = LtScale::tensor, b_mode = LtScale::tensor;
  int8_t fast = 0;
};
bool is_fp8(cudaDataType type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
struct Layout : cublasLtMatrixLayoutOpaque_t {
  cudaDataType type;
  int64_t rows, columns, ld;
  int64_t element() const { return type == CUDA_R_32F ? 4 : is_fp8(type) ? 1 : 2; }
  int64_t bytes() const { return ((columns - 1) * ld + rows) * element(); }
  bool operator==(const Layout& o) const {
    return type == o.type && rows == o.rows && columns == o.columns && ld == o.ld;
  }
};
struct Preference : cublasLtMatmulPreferenceOpaque_t {
  uint64_t workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::array<uint32_t, 4> alignment = {256, 256, 256, 256};  // of A, B, C, D
};
// Contents of cublasLtMatmulAlgo_t.
struct Algorithm {
  uint64_t magic, kind, problem, workspace;
  std::array<uint32_t, 4> alignment;
};
constexpr uint64_t kMagic = 0x7472697665744c74;
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

template <class T>
cublasStatus_t assign(T& to, const void* from, size_t bytes) {
  if (!from || bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

bool aligned(const void* data, uint64_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; }

bool overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  return a && b && x < y + static_cast<uintptr_t>(b_bytes) && y < x + static_cast<uintptr_t>(a_bytes);
}

// FP8's additional requirements.
bool fp8_is_supported(const Descriptor& how, const Layout& a, const Layout& b, const Layout& d) {
  if (!is_fp8(a.type) || !is_fp8(b.type) || is_fp8(d.type) || (a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2))
    return false;
  if (how.transpose_a != CUBLAS_OP_T || how.transpose_b != CUBLAS_OP_N || how.compute != CUBLAS_COMPUTE_32F)
    return false;
  for (const int64_t bytes : {a.rows, a.ld, b.ld, d.rows * d.element(), d.ld * d.element()})
    if (bytes % 16 != 0) return false;
  for (const float* scale : {how.a_scale, how.b_scale})
    if (!scale || !aligned(scale, 16)) return false;
  const bool blocks = how.a_mode != LtScale::tensor || how.b_mode != LtScale::tensor;
  if (blocks && (how.a_mode == how.b_mode ? how.a_mode == LtScale::blk128x128
                                          : how.a_mode == LtScale::tensor || how.b_mode == LtScale::tensor))
    return false;
  if (blocks && (d.columns % 4 != 0 || how.fast || a.type != CUDA_R_8F_E4M3 || a.type != b.type ||
                 trivet::emulation::driver().compute_capability != 90))
    return false;
  return how.epilogue == CUBLASLT_EPILOGUE_DEFAULT || how.epilogue == CUBLASLT_EPILOGUE_BIAS;
}

// Checks sizes, types and epilogue: all but the operands' addresses.
cublasStatus_t problem_of(const Descriptor& how, const Layout& a, const Layout& b, const Layout& c, const Layout& d,
                          LtProduct& p) {
  for (const Layout* layout : {&a, &b, &c, &d}) {
    if (layout->type != CUDA_R_32F && layout->type != CUDA_R_16BF && !is_fp8(layout->type))
      return CUBLAS_STATUS_NOT_SUPPORTED;
    if (layout->rows <= 0 || layout->columns <= 0 || layout->ld < layout->rows) return CUBLAS_STATUS_INVALID_VALUE;
  }
  p.transpose_a = how.transpose_a == CUBLAS_OP_T, p.transpose_b = how.transpose_b == CUBLAS_OP_T;
  p.m = d.rows, p.n = d.columns, p.k = p.transpose_a ? a.rows : a.columns;
  if ((p.transpose_a ? a.columns : a.rows) != p.m || (p.transpose_b ? b.rows : b.columns) != p.n ||
      (p.transpose_b ? b.columns : b.rows) != p.k || c.rows != p.m || c.columns != p.n)
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool fp8 = is_fp8(a.type) || is_fp8(b.type) || is_fp8(d.type);
  p.type = a.type, p.b_type = b.type, p.d_type = d.type, p.bias_type = fp8 ? CUDA_R_16BF : d.type;
  p.a_scale = how.a_scale, p.b_scale = how.b_scale, p.a_mode = how.a_mode, p.b_mode = how.b_mode;
  p.lda = a.ld, p.ldb = b.ld, p.ldc = c.ld, p.ldd = d.ld, p.ld_aux = how.aux_ld;
  p.tf32 = how.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  if ((a.type != b.type && !fp8) || c.type != d.type || (a.type == CUDA_R_32F && d.type != CUDA_R_32F) ||
      (p.tf32 && a.type != CUDA_R_32F) || (fp8 && !fp8_is_supported(how, a, b, d)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!fp8 && (how.a_scale || how.b_scale || how.fast)) return CUBLAS_STATUS_INVALID_VALUE;

  p.gelu_gradient = how.epilogue == CUBLASLT_EPILOGUE_DGELU;
  p.gelu = how.epilogue == CUBLASLT_EPILOGUE_GELU_AUX || how.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  const bool biased = how.epilogue == CUBLASLT_EPILOGUE_BIAS || how.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  const bool bgradb = how.epilogue == CUBLASLT_EPILOGUE_BGRADB;
  if (!p.gelu && !p.gelu_gradient && !biased && !bgradb && how.epilogue != CUBLASLT_EPILOGUE_DEFAULT)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if ((biased || bgradb) != (how.bias != nullptr) || (p.gelu || p.gelu_gradient) != (how.aux != nullptr))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (how.bias && how.bias_type != -1 && how.bias_type != p.bias_type) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!how.bias && how.bias_type != -1) return CUBLAS_STATUS_INVALID_VALUE;
  if (bgradb) p.bias_gradient = how.bias;
  else p.bias = how.bias;
  if (how.aux && (how.aux_ld % 8 != 0 || how.aux_ld < p.m || !aligned(how.aux, 16))) return CUBLAS_STATUS_INVALID_VALUE;
  if (how.aux && how.aux_type != -1 && how.aux_type != d.type) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!how.aux && (how.aux_ld != 0 || how.aux_type != -1)) return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}

// A hash of the problem, by which an algorithm recognizes it.
uint64_t number_of(const LtProduct& p, uint32_t epilogue) {
  uint64_t number = kMagic;
  for (const int64_t x : {p.m, p.n, p.k, p.lda, p.ldb, p.ldc, p.ldd, p.ld_aux, int64_t{p.type}, int64_t{p.b_type},
                          int64_t{p.d_type}, int64_t{p.transpose_a}, int64_t{p.transpose_b}, int64_t{p.tf32},
                          int64_t{epilogue}, static_cast<int64_t>(p.a_mode), static_cast<int64_t>(p.b_mode)})
    number = (number ^ static_cast<uint64_t>(x)) * 0x9e3779b97f4a7c15u + (number >> 29);
  return number;
}

// Checks inputs and outputs against each other and against the algorithm's alignment.
cublasStatus_t check_operands(const LtProduct& p, const Layout& a, const Layout& b, const Layout& c, const Layout& d,
                              const Algorithm& with) {
  const void* const operands[] = {p.a, p.b, p.c, p.d};
  const Layout* const layouts[] = {&a, &b, &c, &d};
  for (size_t i = 0; i < 4; ++i)
    if (!operands[i] || !aligned(operands[i], static_cast<uint64_t>(layouts[i]->element())) ||
        !aligned(operands[i], std::min<uint64_t>(16, with.alignment[i])))
      return CUBLAS_STATUS_INVALID_VALUE;
  if (p.c == p.d ? !(c == d) : overlap(p.c, c.bytes(), p.d, d.bytes())) return CUBLAS_STATUS_INVALID_VALUE;
  const int64_t bias_bytes = p.m * (p.bias_type == CUDA_R_32F ? 4 : 2),
                aux_bytes = ((p.n - 1) * p.ld_aux + p.m) * d.element();
  for (const auto& [written, bytes] : {std::pair<const void*, int64_t>{p.d, d.bytes()},
                                       {p.gelu ? p.aux : nullptr, aux_bytes},
                                       {p.bias_gradient, p.n * d.element()},
                                       {p.workspace, p.workspace_bytes()}})
    if (overlap(written, bytes, p.a, a.bytes()) || overlap(written, bytes, p.b, b.bytes()) ||
        overlap(written, bytes, p.bias, bias_bytes) ||
        overlap(written, bytes, p.a_scale, LtProduct::scale_bytes(p.a_mode, p.m, p.k)) ||
        overlap(written, bytes, p.b_scale, LtProduct::scale_bytes(p.b_mode, p.n, p.k)) ||
        (written != p.d && (overlap(written, bytes, p.c, c.bytes()) || overlap(written, bytes, p.d, d.bytes()))) ||
        (written == p.workspace && overlap(written, bytes, p.bias_gradient, p.n * d.element())) ||
        (written == p.d && overlap(written, bytes, p.aux, aux_bytes)))
      return CUBLAS_STATUS_INVALID_VALUE;
  if (p.beta != 0 && (p.gelu || p.gelu_gradient)) return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

// An invalid value in a GEMM is the caller's mistake, not a limitation of the library.
cublasStatus_t told(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_INVALID_VALUE)
    trivet::emulation::broken("cuBLASLt: an argument of a GEMM is wrong, or does not fit the others");
  return status;
}

// All descriptors are created and destroyed in the same way.
template <class T, class Opaque>
cublasStatus_t create(Opaque** out, T value) {
  if (!out) return CUBLAS_STATUS_INVALID_VALUE;
  *out = new T(value);
  return CUBLAS_STATUS_SUCCESS;
}
template <class T, class Opaque>
cublasStatus_t destroy(Opaque* object) {
  delete static_cast<T*>(object);
  return object ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() { return trivet::emulation::driver().cublas_version; }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success (emulated cuBLASLt)";
    case CUBLAS_STATUS_INVALID_VALUE: return "an argument is wrong, or does not fit the others (emulated cuBLASLt)";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "not supported (emulated cuBLASLt)";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the algorithm does not run (emulated cuBLASLt)";
    default: return "another status (emulated cuBLASLt)";
  }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* out, cublasComputeType_t compute, cudaDataType_t scale) {
  if ((compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32) || scale != CUDA_R_32F)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  Descriptor how{};
  how.compute = compute;
  return create(out, how);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroy<Descriptor>(desc); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  if (!desc) return CUBLAS_STATUS_INVALID_VALUE;
  Descriptor& how = *static_cast<Descriptor*>(desc);
  // A_SCALE_MODE and B_SCALE_MODE, which the headers of older toolkits lack.
  if (const auto number = static_cast<int>(attribute); number == 31 || number == 32) {
    LtScale& to = number == 31 ? how.a_mode : how.b_mode;
    if (const cublasStatus_t status = assign(to, value, bytes); status != CUBLAS_STATUS_SUCCESS) return status;
    const bool known = to == LtScale::tensor || to == LtScale::vec128 || to == LtScale::blk128x128;
    return known && trivet::emulation::driver().cublas_version >= 120900 ? CUBLAS_STATUS_SUCCESS
                                                                         : CUBLAS_STATUS_NOT_SUPPORTED;
  }
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
    case CUBLASLT_MATMUL_DESC_TRANSB: {
      int32_t& to = attribute == CUBLASLT_MATMUL_DESC_TRANSA ? how.transpose_a : how.transpose_b;
      if (const cublasStatus_t status = assign(to, value, bytes); status != CUBLAS_STATUS_SUCCESS) return status;
      return to == CUBLAS_OP_N || to == CUBLAS_OP_T ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    }
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return assign(how.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return assign(how.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return assign(how.bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return assign(how.aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return assign(how.aux_ld, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: return assign(how.aux_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return assign(how.a_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return assign(how.b_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM: return assign(how.fast, value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* out, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
  return create(out, Layout{{}, type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), ld});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy<Layout>(layout); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* out) { return create(out, Preference{}); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy<Preference>(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  if (!preference) return CUBLAS_STATUS_INVALID_VALUE;
  Preference& to = *static_cast<Preference*>(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return assign(to.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return assign(to.reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return assign(to.alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return assign(to.alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return assign(to.alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return assign(to.alignment[3], value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t* results, int* count) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!desc || !a || !b || !c || !d || !preference || most <= 0 || !results || !count)
    return told(CUBLAS_STATUS_INVALID_VALUE);
  *count = 0;
  const Descriptor& how = *static_cast<Descriptor*>(desc);
  const Preference& wanted = *static_cast<Preference*>(preference);
  LtProduct p;
  const cublasStatus_t status = problem_of(how, *static_cast<Layout*>(a), *static_cast<Layout*>(b),
                                           *static_cast<Layout*>(c), *static_cast<Layout*>(d), p);
  if (status != CUBLAS_STATUS_SUCCESS) return told(status);
  if (is_fp8(p.type) && *std::ranges::min_element(wanted.alignment) < 16) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.k == 7) return CUBLAS_STATUS_INTERNAL_ERROR;
  if (p.k % 2 == 1 && p.k < 16 && p.k != 9) return CUBLAS_STATUS_NOT_SUPPORTED;

  const auto propose = [&](LtAlgorithm kind, cublasStatus_t state = CUBLAS_STATUS_SUCCESS) {
    p.algorithm = kind;
    const auto workspace = static_cast<uint64_t>(p.workspace_bytes());
    if (*count == most || workspace > wanted.workspace) return;
    const Algorithm algorithm{kMagic, static_cast<uint64_t>(kind), number_of(p, how.epilogue), workspace,
                              wanted.alignment};
    cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
    result = {};
    std::memcpy(&result.algo, &algorithm, sizeof algorithm);
    result.workspaceSize = workspace;
    result.state = state;
    result.wavesCount = 1;
  };
  const int64_t special = p.k == 9 ? 8 : p.gelu || p.gelu_gradient ? p.m % 64 : p.bias_gradient ? p.n % 64 : 0;
  if (p.bias_gradient && special == 24) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (special == 8 || special == 16) propose(LtAlgorithm::fails);
  if (special == 8) return CUBLAS_STATUS_SUCCESS;
  if (wanted.reductions & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE) propose(LtAlgorithm::halves_in_d_type);
  propose(LtAlgorithm::whole);
  propose(LtAlgorithm::fails, CUBLAS_STATUS_NOT_SUPPORTED);
  if (wanted.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) propose(LtAlgorithm::halves);
  if (most >= 4) propose(LtAlgorithm::fails);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!desc || !alpha || !beta || !a_layout || !b_layout || !c_layout || !d_layout)
    return told(CUBLAS_STATUS_INVALID_VALUE);
  if (!algo) return CUBLAS_STATUS_NOT_SUPPORTED;  // the real library would ask its heuristic
  const Descriptor& how = *static_cast<Descriptor*>(desc);
  const Layout &la = *static_cast<Layout*>(a_layout), &lb = *static_cast<Layout*>(b_layout),
               &lc = *static_cast<Layout*>(c_layout), &ld = *static_cast<Layout*>(d_layout);
  const auto product = std::make_shared<LtProduct>();
  LtProduct& p = *product;
  if (const cublasStatus_t status = problem_of(how, la, lb, lc, ld, p); status != CUBLAS_STATUS_SUCCESS)
    return told(status);
  Algorithm with;
  std::memcpy(&with, algo, sizeof with);
  if (with.magic != kMagic || with.problem != number_of(p, how.epilogue)) return told(CUBLAS_STATUS_INVALID_VALUE);
  p.algorithm = static_cast<LtAlgorithm>(with.kind);
  p.alpha = *static_cast<const float*>(alpha), p.beta = *static_cast<const float*>(beta);
  p.a = a, p.b = b, p.c = c, p.d = d, p.aux = how.aux;
  if (with.workspace > 0) {
    if (!workspace || workspace_bytes < with.workspace || !aligned(workspace, 16))
      return told(CUBLAS_STATUS_INVALID_VALUE);
    p.workspace = static_cast<float*>(workspace);
  }
  if (const cublasStatus_t status = check_operands(p, la, lb, lc, ld, with); status != CUBLAS_STATUS_SUCCESS)
    return told(status);
  for (const auto& [scale, count] : {std::pair(p.a_scale, LtProduct::scale_bytes(p.a_mode, p.m, p.k)),
                                     std::pair(p.b_scale, LtProduct::scale_bytes(p.b_mode, p.n, p.k))})
    if (scale && !trivet::emulation::on_a_gpu(scale, static_cast<size_t>(count)))
      trivet::emulation::broken("cuBLASLt: a scale is not in the memory of a GPU");
  if (p.algorithm == LtAlgorithm::fails) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (p.in_blocks()) ++trivet::emulation::driver().block_products;
  if (is_fp8(p.type))
    ++(how.fast ? trivet::emulation::driver().fast_products : trivet::emulation::driver().fp8_products);
  trivet::emulation::load(trivet::emulation::of(stream).device(), with.problem ^ with.kind, "an algorithm of cuBLASLt");
  const cudaError_t status = trivet::emulation::add(stream, [product] {  // a graph replays it
    if (trivet::emulation::driver().last_blocks == 0) run(*product);
  });
  return status == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
