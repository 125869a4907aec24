// The report of a study: one HTML page that needs nothing but itself (no script, no network), light or dark, printable;
// its words and tables in Markdown; and its first picture as a file for a README.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "tools/study/summary.h"

namespace trivet {

// Links lead to the runs' folders within the study's, where the page is meant to lie.
std::string html_report(const Study& study, const Plan& plan, const Summary& summary, const std::vector<RunRow>& rows);
std::string markdown_report(const Study& study, const Plan& plan, const Summary& summary,
                            const std::vector<RunRow>& rows);

// ratio_plot with its colours, as a file of its own.
std::string ratio_picture(const Study& study, const Plan& plan, const Summary& summary);

// Pictures: SVG elements with a style of their own, light or dark as the reader's system is, light on paper. Every text
// from a file is escaped.

// A bar a point: the ratio to the baseline, or the metric if there is no baseline; whiskers are the 95 % interval,
// the winner (or those tied for best) and the baseline stand out.
std::string ratio_plot(const Study& study, const Plan& plan, const Summary& summary);
// A bar a level of each factor, under each condition: its main effect, with its 95 % interval.
std::string effects_plot(const Study& study, const Plan& plan, const Summary& summary);
// A bar a point: its step in milliseconds, exposed communication by class in front. "" if no run tells it.
std::string exposed_plot(const Study& study, const Plan& plan, const Summary& summary);

// ---- tables for people; with all digits and all metrics as CSV

// The first row of each has the names of the columns, the first column a number that names the row: of its point, in
// the order of the plan.

// A row a point: levels of the factors, rounds, the adjusted metric, ratio to the baseline with its 95 % interval,
// verdict; memory a rank, agreement, what went wrong.
TextBlock result_table(const Study& study, const Plan& plan, const Summary& summary);
// A row a point: value and ratio of each response of the study but its metric; one row if there is none.
TextBlock response_table(const Study& study, const Plan& plan, const Summary& summary);
// A row a level of each factor, under each condition.
TextBlock effect_table(const Study& study, const Plan& plan, const Summary& summary);
// A row a point that cannot run.
TextBlock dropped_table(const Study& study, const Plan& plan);
// A row a point of the design that is run as another one.
TextBlock same_table(const Study& study, const Plan& plan);

// A row a point: where the time of a step goes, and what overlap hides and costs.
TextBlock step_table(const Study& study, const Plan& plan, const Summary& summary);
// A row a point and class of communication: bytes, floor, wire and wire over floor, bus bandwidth, exposed, wait.
TextBlock comm_table(const Study& study, const Plan& plan, const Summary& summary);
// The meaning of their columns.
std::string step_legend();
std::string comm_legend();

// The first columns of such tables: the number of a point, and its levels of the factors that have several.
TextBlock point_columns(const Study& study, std::string title);
std::vector<std::string> point_cells(const Study& study, const Plan& plan, size_t i);

// A row a point, dropped ones too, with every metric's median, smallest and largest. Cells are quoted as RFC 4180 says.
std::string csv_report(const Study& study, const Plan& plan, const Summary& summary);

// The best point, those tied for best, or why there is no verdict: sentences without markup, one text for each
// condition.
std::vector<std::string> winner_texts(const Study& study, const Plan& plan, const Summary& summary);

// The warning of ranks with more threads than there are cores.
std::string shared_cores_text(int threads, int cores);

// The planner's command that breaks down the step of the best point, one for each condition with a best
// point. The reader puts in the page of the measured system.
std::vector<std::string> explain_commands(const Study& study, const Plan& plan, const Summary& summary);

// The smallest effects that the study's rounds, and more of them, can see; "" where nothing tells it.
std::string resolution_text(const Summary& summary);

// The extent asked for and reached: points, repeats, runs done.
std::string extent_text(const Study& study, const Plan& plan, const Summary& summary);

// A value of a metric with its unit, and what people call it: by the ending of its key.
std::string metric_text(std::string_view metric, double value);
std::string metric_name(std::string_view metric);
std::string ratio_text(double ratio);                 // 0.873
std::string estimate_text(const Estimate& estimate);  // 0.873 (0.861-0.885): with its 95 % interval

}  // namespace trivet
