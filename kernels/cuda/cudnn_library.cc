#include "kernels/cuda/cudnn_library.h"

namespace trivet {
namespace {

// From 9.16 on the backward pass takes sequences that are no multiple of 128 without a mask of their own.
constexpr size_t kOldest = 91600;

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

}  // namespace trivet
