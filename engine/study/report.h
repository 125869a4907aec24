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

// Pictures: SVG elements with a style of their own, light or dark as the reader's system is, light on paper. Every text
// from a file is escaped.

// A bar a point: the ratio to the baseline, or the metric where there is no baseline; whiskers are the range of the
// repeats, the winner and the baseline stand out.
std::string ratio_plot(const Study& study, const Plan& plan, const Summary& summary);
// A panel a factor: the main effect of each level, and its range over the settings of the others.
std::string effects_plot(const Study& study, const Summary& summary);
// A bar a point: its step in milliseconds, exposed communication by class in front. "" where no run tells it.
std::string exposed_plot(const Study& study, const Plan& plan, const Summary& summary);

}  // namespace trivet
