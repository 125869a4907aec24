#include "kernels/base/trace.h"

namespace trivet {

const char* name_of(Category category) {
  switch (category) {
    case Category::compute: return "compute";
    case Category::comm_tensor: return "comm.tensor";
    case Category::comm_pipeline: return "comm.pipeline";
    case Category::comm_data: return "comm.data";
    case Category::optimizer: return "optimizer";
    case Category::host: return "host";
    case Category::phase: return "phase";
  }
  return "?";
}

}  // namespace trivet
