// The numbers that `trivet schedule` and the browser page (docs/play) show of a simulated or measured step.
#pragma once

#include <string>
#include <vector>

#include "parallel/pipeline/simulate.h"

namespace trivet {

std::vector<std::string> schedule_columns();  // the names of a row's cells
// The bubble (next to its closed form if all stages cost the same and transfers are free), peak slots and transfers.
// costs: those of the simulation.
std::vector<std::string> schedule_row(const Schedule& schedule, const Costs& costs, const Timeline& timeline);

}  // namespace trivet
