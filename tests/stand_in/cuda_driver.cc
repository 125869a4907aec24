// What of NVIDIA's driver cuDNN asks for while it makes a plan, for a machine that has none: there is no device, and
// every compiled kernel is taken. Nothing can be launched. A library that calls itself libcuda.so.1.
namespace {

enum { kDone = 0, kNoDevice = 100, kVersion = 13000 };

}  // namespace

extern "C" {
int cuInit(unsigned) { return kNoDevice; }
int cuDriverGetVersion(int* version) { return *version = kVersion, kDone; }
int cuDeviceGetCount(int* count) { return *count = 0, kDone; }
int cuLibraryLoadData(void** library) { return *library = library, kDone; }
int cuLibraryGetKernel(void** kernel) { return *kernel = kernel, kDone; }
int cuLibraryUnload() { return kDone; }
int cuKernelSetAttribute() { return kDone; }
int cuKernelGetAttribute(int* value) { return *value = 0, kDone; }
// It looks for these too.
int cuCtxGetCurrent() { return kNoDevice; }
int cuCtxGetLimit() { return kNoDevice; }
int cuCtxPopCurrent() { return kNoDevice; }
int cuCtxPushCurrent() { return kNoDevice; }
int cuDeviceGet() { return kNoDevice; }
int cuGetErrorName() { return kNoDevice; }
int cuGetErrorString() { return kNoDevice; }
int cuKernelGetFunction() { return kNoDevice; }
int cuLaunchCooperativeKernel() { return kNoDevice; }
int cuLaunchKernel() { return kNoDevice; }
int cuLaunchKernelEx() { return kNoDevice; }
int cuLibraryLoadFromFile() { return kNoDevice; }
int cuLinkAddData() { return kNoDevice; }
int cuLinkComplete() { return kNoDevice; }
int cuLinkCreate() { return kNoDevice; }
int cuLinkDestroy() { return kNoDevice; }
int cuOccupancyMaxPotentialClusterSize() { return kNoDevice; }
int cuStreamGetCtx() { return kNoDevice; }
}  // extern "C"
