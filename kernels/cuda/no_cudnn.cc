// The twin of cudnn_attention.cc in a build without cuDNN.
#include "kernels/cuda/cudnn_attention.h"

namespace trivet {
namespace {

[[noreturn]] void refuse() { throw ConfigError("this build has no cuDNN: configure with -DTRIVET_CUDNN=ON"); }

}  // namespace

bool built_with_cudnn() { return false; }
std::unique_ptr<CudnnAttention> create_cudnn_attention(const AttentionShape&, bool) { refuse(); }
CudnnPlanned plan_cudnn_forward(const AttentionShape&, const std::string&) { refuse(); }
CudnnPlanned plan_cudnn_backward(const AttentionShape&, bool, const std::string&) { refuse(); }

}  // namespace trivet
