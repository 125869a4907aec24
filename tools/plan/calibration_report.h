// The report on predictions against measured runs: tables, JSON, a picture, and the fitted spec.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/text.h"
#include "tools/plan/calibrate.h"

namespace trivet {

// A table row: the labels, then number of rows, mean, median, maximum, bias.
std::vector<std::string> row_of_errors(std::vector<std::string> labels, const Errors& errors);

// Tables of all rows, and of the errors by file, by tensor-, pipeline- and data-parallel size, and by micro-batch size.
std::vector<TextBlock> describe_errors(const MeasuredRuns& runs, std::span<const double> predicted);

// The errors over all rows, and every row.
nlohmann::ordered_json json_of_errors(const MeasuredRuns& runs, std::span<const double> predicted);

// An SVG of all rows' predicted over measured seconds, on logarithmic axes, with one colour per file.
std::string plot_errors(const MeasuredRuns& runs, std::span<const double> predicted);

// The text of a system spec with `keys` set to `values`; comments are kept.
std::string with_values(const std::string& spec, std::span<const SystemKey* const> keys,
                        std::span<const double> values);

}  // namespace trivet
