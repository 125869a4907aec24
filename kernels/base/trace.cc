#include "kernels/base/trace.h"

namespace trivet {

std::string name_of(Category category) {
  switch (category) {
    case Category::compute: return "compute";
    case Category::optimizer: return "optimizer";
    case Category::host: return "host";
    case Category::phase: return "phase";
    default: return "comm." + std::string(kCommClasses.at(class_of(category)));
  }
}

}  // namespace trivet
