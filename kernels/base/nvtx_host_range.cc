// NVTX is header-only: it looks for a tool's library when the first range begins, and calls nothing if there is none.
#include <nvtx3/nvToolsExt.h>

#include "kernels/base/trace.h"

namespace trivet {

HostRange::HostRange(const char* name) { nvtxRangePushA(name); }

HostRange::HostRange(const char* name, int64_t number) {
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = name;
  range.payloadType = NVTX_PAYLOAD_TYPE_INT64;
  range.payload.llValue = number;
  nvtxRangePushEx(&range);
}

HostRange::~HostRange() { nvtxRangePop(); }

}  // namespace trivet
