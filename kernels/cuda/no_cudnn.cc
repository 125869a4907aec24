// The twin of cudnn_attention.cc in a build without cuDNN.
#include "kernels/cuda/cudnn_attention.h"

namespace trivet {

bool built_with_cudnn() { return false; }
std::unique_ptr<CudnnAttention> create_cudnn_attention(const AttentionShape&, bool) {
  throw ConfigError("this build has no cuDNN: configure with -DTRIVET_CUDNN=ON");
}

}  // namespace trivet
