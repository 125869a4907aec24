// YamlReader: typed values out of a YAML tree. What cannot be read, or is not known, becomes a problem with its line,
// and something harmless is read instead, so that one pass finds all problems. For a class that reads one kind of file.
#pragma once

#include <fmt/ranges.h>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <yaml-cpp/yaml.h>

#include "engine/config/problems.h"
#include "engine/config/scalar.h"
#include "engine/config/words.h"

namespace trivet {

class YamlReader {
 protected:
  // Of the file at `path`. Both outlive this.
  YamlReader(const std::string& path, Problems& problems) : problems_(problems), path_(path) {}

  using Handlers = std::vector<std::pair<std::string_view, std::function<void(const YAML::Node&)>>>;

  std::string place(const YAML::Node& node) const {
    return node.Mark().is_null() ? path_ : fmt::format("{}:{}", path_, node.Mark().line + 1);
  }
  void problem(const YAML::Node& node, std::string_view key, std::string_view text) {
    problems_.add_at(place(node), key, text);
  }

  // ---- maps and scalars

  // Calls each with the key and the value; keys that are no text or were there before are problems.
  void entries(
      const YAML::Node& node, const std::string& where,
      const std::function<void(const YAML::Node& key, const std::string& name, const YAML::Node& value)>& each) {
    if (!node.IsMap()) return problem(node, where, "expected a map of keys");
    std::set<std::string> seen;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) {
        problem(entry.first, where, "expected a key, found a list or map");
        continue;
      }
      const std::string name = entry.first.Scalar();
      if (!seen.insert(name).second) problem(entry.first, path_of(where, name), "duplicate key");
      else each(entry.first, name, entry.second);
    }
  }
  void map(const YAML::Node& node, const std::string& where, const Handlers& handlers) {
    std::vector<std::string_view> names;
    for (const auto& [name, handler] : handlers) names.push_back(name);
    entries(node, where, [&](const YAML::Node& key, const std::string& name, const YAML::Node& value) {
      for (const auto& [known, handler] : handlers)
        if (known == name) return handler(value);
      unknown(key, where, name, names, "key");
    });
  }
  void unknown(const YAML::Node& at, const std::string& where, const std::string& name,
               const std::vector<std::string_view>& known, std::string_view what) {
    const std::string_view near = nearest(name, known);
    problem(at, path_of(where, name.substr(0, 100)),
            near.empty() ? fmt::format("unknown {}; expected one of {}", what, fmt::join(known, ", "))
                         : fmt::format("unknown {} - did you mean {}?", what, near));
  }
  static std::string path_of(const std::string& where, std::string_view name) {
    return where.empty() ? std::string(name) : fmt::format("{}.{}", where, name);
  }

  // The text of a scalar; empty, and a problem, where there is none.
  std::optional<std::string> scalar(const YAML::Node& node, const std::string& where, std::string_view expected) {
    if (node.IsScalar()) return node.Scalar();
    problem(node, where,
            fmt::format("found {}, expected {}",
                        node.IsNull()       ? "nothing"
                        : node.IsSequence() ? "a list"
                                            : "a map",
                        expected));
    return {};
  }
  void text(const YAML::Node& node, const std::string& where, std::string& to) {
    const auto value = scalar(node, where, "text");
    if (!value) return;
    if (value->empty() || value->size() > 4096)
      problem(node, where, fmt::format("found {}, expected text", quote(*value)));
    else to = *value;
  }
  int64_t integer(const YAML::Node& node, const std::string& where, int64_t low, int64_t high) {
    const std::string expected = fmt::format("an integer from {} to {}", low, high);
    const auto value = scalar(node, where, expected);
    if (!value) return low;
    const auto number = parse_integer(*value);
    if (number && *number >= low && *number <= high) return *number;
    problem(node, where, fmt::format("found {}, expected {}", quote(*value), expected));
    return low;
  }
  double minutes(const YAML::Node& node, const std::string& where) {
    constexpr auto kExpected = "a number of minutes above 0";
    const auto value = scalar(node, where, kExpected);
    const auto number = value ? parse_number(*value) : std::nullopt;
    if (number && *number > 0) return *number;
    if (value) problem(node, where, fmt::format("found {}, expected {}", quote(*value), kExpected));
    return 1;
  }
  bool truth(const YAML::Node& node, const std::string& where, bool otherwise) {
    const auto value = scalar(node, where, "true or false");
    const auto flag = value ? parse_truth(*value) : std::nullopt;
    if (value && !flag) problem(node, where, fmt::format("found {}, expected true or false", quote(*value)));
    return flag.value_or(otherwise);
  }
  template <class Enum>
  Enum choice(const YAML::Node& node, const std::string& where, std::initializer_list<Enum> values, Enum otherwise) {
    std::vector<std::string_view> names;
    for (const Enum value : values) names.emplace_back(name_of(value));
    const std::string expected = fmt::format("one of {}", fmt::join(names, ", "));
    const auto given = scalar(node, where, expected);
    if (!given) return otherwise;
    for (const Enum value : values)
      if (*given == name_of(value)) return value;
    problem(node, where, fmt::format("found {}, expected {}", quote(*given), expected));
    return otherwise;
  }

  Problems& problems_;

 private:
  const std::string& path_;
};

}  // namespace trivet
