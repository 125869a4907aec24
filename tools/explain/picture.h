// The picture of `trivet explain`. It shows a layer, with its forward pass drawn downwards, its backward pass upwards
// next to it, and the collectives between the operations; below it, a step's calls in the order in which the host
// queues them. It shows bytes, not times.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/explain/explain.h"

namespace trivet {

// An operation of a layer, or several identical ones in a row.
struct LayerRow {
  Queued queued;
  std::string name, size;  // "matmul x 2", "256 x 48 x 48"; for a call, size is its group's name
  std::string linear;      // "qkv, step 2", or empty
};

// units: the names of the rank's units. layer: empty if the rank holds none.
std::string render_explained_svg(std::string_view title, const std::vector<LayerRow>& layer, const RecordedStep& step,
                                 const std::vector<std::string>& units);

}  // namespace trivet
