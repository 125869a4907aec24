// YAML files: a strict parser, and YamlReader, from which the readers of run files and study files derive.
//
// The parser builds a tree of at most 16 levels, and supports no anchors, aliases or tags: each is a problem at its
// line, so the size of a tree is bounded by the size of its text.
#pragma once

#include <fmt/ranges.h>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/scalar.h"
#include "base/words.h"
#include "engine/config/problems.h"

namespace trivet {

struct YamlNode {
  enum Kind { scalar, list, map, alias } kind = scalar;
  Scalar value = {.null = true};     // of a scalar
  std::vector<YamlNode> items = {};  // of a list; for a map, each key followed by its value
  int line = 0;                      // from 1; 0: the file is empty
  std::string refusal = {};          // why the node is not supported

  bool is_null() const { return kind == scalar && value.null; }
};

// "a list", "a map", "nothing", or the text in quotes.
std::string found_text(const YamlNode& node);

// The text of a YAML file of at most 1 MiB. Throws ConfigError, IoError.
std::string read_yaml_text(const std::string& path);

// Parses the text, a single document. After a syntax error the tree holds the text before it, `whole` is false,
// and there is a problem.
struct YamlTree {
  YamlNode root;
  bool whole = true;
};
YamlTree parse_yaml(const std::string& text, const std::string& path, Problems& problems);

// Reads typed values from a tree. Each unreadable or unknown entry becomes a problem with its line, and reading
// continues, so that one pass finds all problems.
class YamlReader {
 protected:
  // path: the file, for messages. Both arguments must outlive the reader.
  YamlReader(const std::string& path, Problems& problems) : problems_(problems), path_(path) {}

  // `where` is the path of a node: "factors.size".
  using Handler = std::function<void(const YamlNode& node, const std::string& where)>;
  using Handlers = std::vector<std::pair<std::string_view, Handler>>;
  using Entry = std::function<void(const YamlNode& key, const std::string& name, const YamlNode& value)>;

  std::string place(const YamlNode& node) const {
    return node.line == 0 ? path_ : fmt::format("{}:{}", path_, node.line);
  }
  void problem(const YamlNode& node, std::string_view key, std::string_view text) {
    problems_.add_at(place(node), key, text);
  }
  static std::string path_of(const std::string& where, std::string_view name) {
    return fmt::format("{}{}{}", where, where.empty() ? "" : ".", name.substr(0, 100));
  }

  // Calls each(key, name, value) for the entries of a map.
  void entries(const YamlNode& node, const std::string& where, const Entry& each);
  // Calls the handler of each key.
  void map(const YamlNode& node, const std::string& where, const Handlers& handlers);
  void unknown(const YamlNode& at, const std::string& where, std::string_view name,
               const std::vector<std::string_view>& known, std::string_view what);

  // The text of a scalar. If there is none, returns nullopt and adds a problem; same for the functions below.
  std::optional<std::string> scalar(const YamlNode& node, const std::string& where, std::string_view expected);
  // Returns parse(text), an optional that is empty if the text is not as expected.
  template <class Parse>
  auto value(const YamlNode& node, const std::string& where, std::string_view expected, const Parse& parse)
      -> decltype(parse(std::string())) {
    const auto text = scalar(node, where, expected);
    if (!text) return {};
    const auto parsed = parse(*text);
    if (!parsed) problem(node, where, fmt::format("found {}, expected {}", quote(*text), expected));
    return parsed;
  }
  std::optional<std::string> text(const YamlNode& node, const std::string& where);
  std::optional<int64_t> integer(const YamlNode& node, const std::string& where, int64_t low, int64_t high);
  template <class Enum>
  std::optional<Enum> choice(const YamlNode& node, const std::string& where) {
    return value(node, where, fmt::format("one of {}", fmt::join(words_of(Enum{}), ", ")), parse_word<Enum>);
  }

  // Handlers that store a value if it is valid.
  Handler into(std::string& to) {
    return [this, &to](const YamlNode& node, const std::string& where) { to = text(node, where).value_or(to); };
  }
  template <class Integer>
  Handler into(Integer& to, int64_t low, int64_t high) {
    return [=, this, &to](const YamlNode& node, const std::string& where) {
      to = static_cast<Integer>(integer(node, where, low, high).value_or(to));
    };
  }
  Handler into(bool& to) {
    return [this, &to](const YamlNode& node, const std::string& where) {
      to = value(node, where, "true or false", parse_truth).value_or(to);
    };
  }
  template <class Enum>
  requires std::is_enum_v<Enum> Handler into(Enum& to) {
    return [this, &to](const YamlNode& node, const std::string& where) { to = choice<Enum>(node, where).value_or(to); };
  }
  // A handler that stores the address of the node.
  static Handler into(const YamlNode*& to) {
    return [&to](const YamlNode& node, const std::string&) { to = &node; };
  }

  Problems& problems_;

 private:
  const std::string& path_;
};

}  // namespace trivet
