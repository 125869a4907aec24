// A study's report: one self-contained HTML page (no scripts, no network), light or dark, printable; its text and
// tables in Markdown; and its first plot as an SVG file for a README.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "tools/study/summary.h"

namespace trivet {

// Links to the runs' folders are relative to the study's folder, where the page belongs.
std::string html_report(const Study& study, const Plan& plan, const Summary& summary, const std::vector<RunRow>& rows);
std::string markdown_report(const Study& study, const Plan& plan, const Summary& summary,
                            const std::vector<RunRow>& rows);

// ratio_plot() with a background, as a standalone SVG file.
std::string ratio_picture(const Study& study, const Plan& plan, const Summary& summary);

// Plots: SVG elements with their own style, light or dark like the reader's system, light in print. All text from files
// is escaped.

// One bar per point: the ratio to the baseline, or the metric if there is no baseline. Whiskers are the 95 % interval;
// the winner (or the points tied for best) and the baseline stand out.
std::string ratio_plot(const Study& study, const Plan& plan, const Summary& summary);
// One bar per level of each factor, under each condition: its main effect with its 95 % interval.
std::string effects_plot(const Study& study, const Plan& plan, const Summary& summary);
// One bar per point: its step in milliseconds, starting with exposed communication by class. "" if no run reports it.
std::string exposed_plot(const Study& study, const Plan& plan, const Summary& summary);

// ---- tables for readers; csv_report() gives all digits and all metrics

// The first row of each table is the header. Column "#" is the point's number in plan order (in effect_table(), the
// row's number).

// One row per point: factor levels, rounds, the adjusted metric, the ratio to the baseline with its 95 % interval,
// verdict, memory per rank, agreement of losses, and errors.
TextBlock result_table(const Study& study, const Plan& plan, const Summary& summary);
// One row per point: value and ratio of each response other than the study's metric; only the header if none exist.
TextBlock response_table(const Study& study, const Plan& plan, const Summary& summary);
// One row per level of each factor, under each condition.
TextBlock effect_table(const Study& study, const Plan& plan, const Summary& summary);
// One row per point that cannot run.
TextBlock dropped_table(const Study& study, const Plan& plan);
// One row per point of the design that is merged into another point's run.
TextBlock same_table(const Study& study, const Plan& plan);

// One row per point: the breakdown of its step time, and what overlap hides and costs.
TextBlock step_table(const Study& study, const Plan& plan, const Summary& summary);
// One row per point and communication class: bytes, floor, wire, wire over floor, bus bandwidth, exposed, wait.
TextBlock comm_table(const Study& study, const Plan& plan, const Summary& summary);
// Explanations of the columns of these two tables.
std::string step_legend();
std::string comm_legend();

// The first columns of per-point tables: the point's number, and its levels of all factors with several levels.
TextBlock point_columns(const Study& study, std::string title);
std::vector<std::string> point_cells(const Study& study, const Plan& plan, size_t i);

// One row per point, dropped ones included, with every metric's median, minimum and maximum. Quoted as in RFC 4180.
std::string csv_report(const Study& study, const Plan& plan, const Summary& summary);

// The best point, those tied for best, or the reason why no verdict is possible, as sentences without markup: one text
// per condition, then general remarks.
std::vector<std::string> winner_texts(const Study& study, const Plan& plan, const Summary& summary);

// The warning that ranks run more threads than there are cores.
std::string shared_cores_text(int threads, int cores);

// The smallest effects that the study's rounds, and larger numbers of rounds, can detect; "" if unknown.
std::string resolution_text(const Summary& summary);

// How much was requested and how much was completed: points, repeats, runs.
std::string extent_text(const Study& study, const Plan& plan, const Summary& summary);

// A metric's value with its unit, which the suffix of its key determines; and the metric's display name.
std::string metric_text(std::string_view metric, double value);
std::string metric_name(std::string_view metric);
std::string ratio_text(double ratio);                 // 0.873
std::string estimate_text(const Estimate& estimate);  // 0.873 (0.861-0.885): with the 95 % interval

}  // namespace trivet
