// The report on predictions against measured runs: tables, a picture, a page.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/text.h"
#include "tools/plan/calibrate.h"

namespace trivet {

// The labels, and then rows, mean, median, most, bias.
std::vector<std::string> row_of_errors(std::vector<std::string> labels, const Errors& errors);

// Errors by file, by tensor, pipeline and data parallel size and by micro-batch size; and each row.
std::vector<TextBlock> describe_errors(const MeasuredRuns& runs, std::span<const double> predicted);

// The errors of all rows together, and each row.
nlohmann::ordered_json json_of_errors(const MeasuredRuns& runs, std::span<const double> predicted);

// Predicted over measured seconds of all rows, logarithmic, a colour for each file.
std::string plot_errors(const MeasuredRuns& runs, std::span<const double> predicted);

// The text of a system's page with these values; its comments stay.
std::string with_values(const std::string& page, std::span<const SystemKey* const> keys,
                        std::span<const double> values);

}  // namespace trivet
