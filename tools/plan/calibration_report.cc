#include "tools/plan/calibration_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <sstream>

#include "base/svg.h"

namespace trivet {
namespace {

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

// Every run's metrics are in a file named metrics.jsonl, so the folder's name tells runs apart.
std::string short_name(const std::filesystem::path& path) {
  const auto name = path.filename();
  return (name == "metrics.jsonl" ? path.parent_path().filename() / name : name).string();
}

std::string name_of_file(const MeasuredRow& row) { return short_name(row.place.substr(0, row.place.rfind(':'))); }

}  // namespace

std::vector<std::string> row_of_errors(std::vector<std::string> labels, const Errors& e) {
  for (const std::string& cell : {fmt::format("{}", e.rows), percent(e.mean), percent(e.median), percent(e.most),
                                  fmt::format("{:+.1f} %", 100 * e.bias)})
    labels.push_back(cell);
  return labels;
}

std::vector<TextBlock> describe_errors(const MeasuredRuns& runs, std::span<const double> predicted) {
  std::vector<TextBlock> blocks;
  const auto add = [&](const char* title, const auto& group_of) {
    std::map<std::pair<double, std::string>, std::vector<size_t>> groups;
    for (size_t i = 0; i < runs.rows().size(); ++i) groups[group_of(runs.rows()[i])].push_back(i);
    TextBlock block{.title = fmt::format("errors by {}", title)};
    for (const char* name : {title, "rows", "mean", "median", "most", "bias"})
      block.column(name, name == title ? 'l' : 'r');
    for (const auto& [group, which] : groups) {
      std::vector<double> theirs;
      for (const size_t i : which) theirs.push_back(predicted[i]);
      block.rows.push_back(row_of_errors({group.second}, errors_of(runs, which, theirs)));
    }
    blocks.push_back(std::move(block));
  };
  const auto number = [](int64_t value) { return std::pair(static_cast<double>(value), fmt::format("{}", value)); };
  TextBlock each{.title = "rows"};
  for (const char* name : {"row", "ranks", "t", "p", "d", "micro-batch", "measured s", "predicted s", "error"})
    each.column(name, *name == 'r' && name[1] == 'o' ? 'l' : 'r');
  for (size_t i = 0; i < runs.rows().size(); ++i) {
    const MeasuredRow& row = runs.rows()[i];
    const MeshShape& mesh = row.layout.mesh;
    each.rows.push_back({short_name(row.place), fmt::format("{}", mesh.world()), fmt::format("{}", mesh[Axis::tp]),
                         fmt::format("{}", mesh[Axis::pp]), fmt::format("{}", mesh[Axis::dp]),
                         fmt::format("{}", row.config.batch.micro_batch_size), fmt::format("{:.4g}", row.step_seconds),
                         fmt::format("{:.4g}", predicted[i]),
                         fmt::format("{:+.1f} %", 100 * (predicted[i] / row.step_seconds - 1))});
  }
  blocks.push_back(std::move(each));
  add("file", [&](const MeasuredRow& row) { return std::pair(0.0, name_of_file(row)); });
  add("tensor parallel size", [&](const MeasuredRow& row) { return number(row.layout.mesh[Axis::tp]); });
  add("pipeline parallel size", [&](const MeasuredRow& row) { return number(row.layout.mesh[Axis::pp]); });
  add("data parallel size", [&](const MeasuredRow& row) { return number(row.layout.mesh[Axis::dp]); });
  add("micro-batch size", [&](const MeasuredRow& row) { return number(row.config.batch.micro_batch_size); });
  return blocks;
}

nlohmann::ordered_json json_of_errors(const MeasuredRuns& runs, std::span<const double> predicted) {
  std::vector<size_t> all(runs.rows().size());
  std::iota(all.begin(), all.end(), size_t{0});
  const Errors e = errors_of(runs, all, predicted);
  nlohmann::ordered_json json{
      {"rows", e.rows}, {"mean", e.mean}, {"median", e.median}, {"most", e.most}, {"bias", e.bias}};
  for (const size_t i : all) {
    const MeasuredRow& row = runs.rows()[i];
    const MeshShape& mesh = row.layout.mesh;
    json["each"].push_back({{"row", row.place},
                            {"ranks", mesh.world()},
                            {"tensor_model_parallel_size", mesh[Axis::tp]},
                            {"pipeline_model_parallel_size", mesh[Axis::pp]},
                            {"data_parallel_size", mesh[Axis::dp]},
                            {"micro_batch_size", row.config.batch.micro_batch_size},
                            {"measured_seconds", row.step_seconds},
                            {"predicted_seconds", predicted[i]}});
  }
  return json;
}

std::string plot_errors(const MeasuredRuns& runs, std::span<const double> predicted) {
  constexpr double kWidth = 640, kHeight = 360, kLeft = 60, kTop = 40, kRight = 150, kBottom = 44;
  double low = 1e300, high = 0, most = 0.1;
  for (size_t i = 0; i < predicted.size(); ++i) {
    const double seconds = runs.rows()[i].step_seconds;
    low = std::min(low, seconds), high = std::max(high, seconds);
    most = std::max(most, std::abs(std::log(predicted[i] / seconds)));
  }
  most = std::min(most, 0.5);
  const double width = kWidth - kLeft - kRight, height = kHeight - kTop - kBottom;
  const auto x_of = [&](double seconds) {
    return kLeft + width * (high > low ? std::log(seconds / low) / std::log(high / low) : 0.5);
  };
  const auto y_of = [&](double ratio) {
    return kTop + height / 2 * (1 - std::clamp(std::log(ratio) / most, -1.0, 1.0));
  };
  Canvas canvas;
  canvas.text(kLeft, 18, "", "predicted over measured step time");
  for (const double ratio : {0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.4}) {
    if (std::abs(std::log(ratio)) > most) continue;
    canvas.line(kLeft, y_of(ratio), kLeft + width, y_of(ratio), ratio == 1 ? "one" : "grid");
    canvas.text(kLeft - 8, y_of(ratio) + 4, "soft end", fmt::format("{:g}", ratio));
  }
  for (const double seconds : {0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0})
    if (seconds >= low && seconds <= high)
      canvas.text(x_of(seconds), kHeight - kBottom + 18, "soft mid", fmt::format("{:g}", seconds));
  canvas.text(kLeft + width / 2, kHeight - 8, "soft mid", "measured seconds");
  std::map<std::string, size_t> colours;
  for (size_t i = 0; i < predicted.size(); ++i) {
    const MeasuredRow& row = runs.rows()[i];
    const size_t colour = colours.try_emplace(name_of_file(row), colours.size()).first->second;
    canvas.dot(x_of(row.step_seconds), y_of(predicted[i] / row.step_seconds), fmt::format("s{}", colour % 6),
               fmt::format("{}: {:.4g} s measured, {:.4g} s predicted", row.place, row.step_seconds, predicted[i]));
  }
  for (const auto& [file, colour] : colours) {
    const double y = kTop + 16 * static_cast<double>(colour);
    canvas.dot(kLeft + width + 16, y, fmt::format("s{}", colour % 6));
    canvas.text(kLeft + width + 26, y + 4, "soft", file);
  }
  return canvas.finish(kWidth, kHeight, "Predicted over measured step time of each row");
}

std::string with_values(const std::string& spec, std::span<const SystemKey* const> keys,
                        std::span<const double> values) {
  std::istringstream lines(spec);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    for (size_t k = 0; k < keys.size(); ++k) {
      const std::string key = std::string(keys[k]->name) + ':';
      if (!line.starts_with(key)) continue;
      const size_t comment = std::min(line.find('#'), line.size());
      line = fmt::format("{:<28} {}", fmt::format("{} {:.4g}", key, values[k]),
                         comment < line.size() ? "# fitted; before: " + line.substr(comment + 2) : "# fitted");
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return text;
}

}  // namespace trivet
