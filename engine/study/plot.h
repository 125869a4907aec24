// Pictures of a study: SVG elements with a style of their own, light or dark as the reader's system is, light on paper.
// Every text from a file is escaped.
#pragma once

#include <string>

#include "engine/study/summary.h"

namespace trivet {

// A bar a point: the ratio to the baseline, or the metric where there is no baseline; whiskers are the range of the
// repeats, the winner and the baseline stand out.
std::string ratio_plot(const Study& study, const Plan& plan, const Summary& summary);
// A panel a factor: the main effect of each level, and its range over the settings of the others.
std::string effects_plot(const Study& study, const Summary& summary);
// A bar a point: its step in milliseconds, exposed communication by class in front. "" where no run tells it.
std::string exposed_plot(const Study& study, const Plan& plan, const Summary& summary);

}  // namespace trivet
