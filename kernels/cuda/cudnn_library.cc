#include "kernels/cuda/cudnn_library.h"

#include <dlfcn.h>

namespace trivet {
namespace {

// From 9.16 on the backward pass takes sequences that are no multiple of 128 without a mask of their own.
constexpr size_t kOldest = 91600;

}  // namespace

CudnnLibrary::CudnnLibrary() {
  const std::string name = "libcudnn.so." + std::to_string(CUDNN_MAJOR);
  file_.reset(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE));
  if (!file_)
    file_.reset(dlopen(TRIVET_CUDNN_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE));  // where the build found it
  if (!file_) throw ConfigError("cuDNN cannot be loaded: " + std::string(dlerror()));
  load(get_version, "cudnnGetVersion");
  load(status_text, "cudnnGetErrorString");
  load(get_last_error, "cudnnGetLastErrorString");
  load(create, "cudnnCreate");
  load(destroy, "cudnnDestroy");
  load(set_stream, "cudnnSetStream");
  load(create_descriptor, "cudnnBackendCreateDescriptor");
  load(destroy_descriptor, "cudnnBackendDestroyDescriptor");
  load(set_attribute, "cudnnBackendSetAttribute");
  load(get_attribute, "cudnnBackendGetAttribute");
  load(finalize, "cudnnBackendFinalize");
  load(execute, "cudnnBackendExecute");
  if (get_version() < kOldest)
    throw ConfigError("the cuDNN that was loaded is " + version() + ", expected 9.16 or newer");
}

template <class Function>
void CudnnLibrary::load(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(file_.get(), name));
  if (!function) throw ConfigError("the cuDNN that was loaded has no " + std::string(name));
}

void CudnnLibrary::Close::operator()(void* file) const { dlclose(file); }

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
