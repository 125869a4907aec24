// The report of a study: one HTML page that needs nothing but itself (no script, no network), light or dark, printable;
// and its first picture as a file for a README.
#pragma once

#include <string>
#include <vector>

#include "engine/study/summary.h"

namespace trivet {

// Links lead to the runs' folders within the study's, where the page is meant to lie.
std::string html_report(const Study& study, const Plan& plan, const Summary& summary, const std::vector<RunRow>& rows);

// ratio_plot with its colours, as a file of its own.
std::string ratio_picture(const Study& study, const Plan& plan, const Summary& summary);

}  // namespace trivet
