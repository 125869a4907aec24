#include "parallel/mesh.h"

namespace trivet {

Mesh make_mesh(Communicator& world, const MeshShape& shape) {
  std::string sizes;
  for (const AxisInfo& row : kAxes)
    sizes += (sizes.empty() ? "" : " * ") + std::to_string(shape[row.axis]) + " " + row.group;
  check(world.size() == shape.world(), "the mesh has " + sizes + " = " + std::to_string(shape.world()) +
                                           " ranks, the world has " + std::to_string(world.size()));
  Mesh mesh;
  mesh.shape = shape;
  mesh.at = position_of(world.rank(), shape);
  const auto group = [&](AxisSet axes, const char* name, Category category) {
    return world.split(group_members(mesh.at, shape, axes), name, category);
  };
  mesh.tensor = group({Axis::tp}, "tensor", comm_of("tensor"));
  mesh.data = group(kGradientAxes, "data", comm_of("data"));
  mesh.pipeline = group({Axis::pp}, "pipeline", comm_of("pipeline"));
  mesh.model = group(kModelAxes, "model", shape[Axis::pp] > 1 ? comm_of("pipeline") : comm_of("tensor"));
  return mesh;
}

}  // namespace trivet
