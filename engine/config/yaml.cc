#include "engine/config/yaml.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <sstream>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include "base/check.h"
#include "base/files.h"

namespace trivet {
namespace {

constexpr int64_t kMostBytes = 1 << 20;
constexpr size_t kMostDepth = 16;

using Lines = std::vector<std::string_view>;

Lines lines_of(std::string_view text) {
  Lines lines;
  for (size_t at = 0; at <= text.size(); at += lines.back().size() + 1)
    lines.push_back(text.substr(at, text.find('\n', at) - at));
  return lines;
}

// The rest of the line from that column on; empty past the end.
std::string_view text_at(const Lines& lines, int line, int column) {
  if (line < 0 || static_cast<size_t>(line) >= lines.size() || column < 0) return {};
  const std::string_view whole = lines[static_cast<size_t>(line)];
  return whole.substr(std::min(static_cast<size_t>(column), whole.size()));
}

// The parser's most common messages, reworded for someone who writes `key: value` lines.
std::string in_words(const YAML::Exception& error, const Lines& lines) {
  using namespace YAML::ErrorMsg;
  static const std::pair<std::string_view, std::string_view> kWords[] = {
      {DOC_IN_SCALAR, "the document ends inside a quoted string: its closing quote is missing"},
      {MAP_VALUE,
       "there is a ':' where no key can end; expected a ':' and a space after each key, also that of the line before, "
       "and quotes around a value with a ':' in it"},
      {MAP_KEY, "a key is not allowed here; expected it on a line of its own, indented like those around it"},
      {BLOCK_ENTRY, "a list's '-' is not allowed here; expected 'key: value'"},
      {END_OF_MAP, "the line does not fit the map above it; expected 'key: value', indented like the keys around it"},
      {END_OF_SEQ, "the line does not fit the list above it; expected '- item', indented like the items around it"},
      {END_OF_MAP_FLOW, "a '{' is not closed before this; expected ',' or '}'"},
      {END_OF_SEQ_FLOW, "a '[' is not closed before this; expected ',' or ']'"},
      {UNKNOWN_TOKEN, "a value cannot begin with this character; put it in quotes"}};
  const std::string_view line = text_at(lines, error.mark.line, 0);
  if (line.substr(0, line.find_first_not_of(" \t")).find('\t') != std::string_view::npos)
    return "the line is indented with a tab, expected spaces";
  const auto found = std::ranges::find(kWords, std::string_view(error.msg), [](const auto& row) { return row.first; });
  return found == std::end(kWords) ? error.msg : std::string(found->second);
}

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(YamlNode& documents, const Lines& lines) : lines_(lines), open_{&documents} {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    // The mark points to the null or, if that has no text, to its neighbour before or after.
    const std::string_view here = text_at(lines_, mark.line, mark.column);
    const bool written =
        here.starts_with('~') || here.starts_with("null") || here.starts_with("Null") || here.starts_with("NULL");
    add(mark, anchor, "", YamlNode::scalar).value = {.null = true, .missing = !written};
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    add(mark, YAML::NullAnchor, "", YamlNode::alias).refusal = "aliases (*name) are not supported: write the value out";
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    add(mark, anchor, tag, YamlNode::scalar).value = {.text = value, .quoted = tag == "!"};
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open_.push_back(&add(mark, anchor, tag, YamlNode::list));
  }
  void OnSequenceEnd() override { open_.pop_back(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open_.push_back(&add(mark, anchor, tag, YamlNode::map));
  }
  void OnMapEnd() override { open_.pop_back(); }

 private:
  YamlNode& add(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string& tag, YamlNode::Kind kind) {
    if (open_.size() > kMostDepth) throw YAML::ParserException(mark, "nested too deeply");
    YamlNode& node = open_.back()->items.emplace_back();
    node.kind = kind;
    node.line = mark.line + 1;
    if (anchor != YAML::NullAnchor) node.refusal = "anchors (&name) are not supported";
    if (tag.size() > 1) node.refusal = "tags are not supported, found " + quote(tag);
    return node;
  }

  const Lines& lines_;
  // The innermost list or map comes last. While it grows, those around it do not, so the pointers stay valid.
  std::vector<YamlNode*> open_;
};

}  // namespace

std::string found_text(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::list: return "a list";
    case YamlNode::map: return "a map";
    case YamlNode::alias: return "an alias";
    default: return node.value.null ? "nothing" : quote(node.value.text);
  }
}

std::string read_yaml_text(const std::string& path) {
  if (path.empty()) throw ConfigError("the name of a YAML file is empty");
  if (!file_exists(path) && errno == ENOENT) throw ConfigError(path + ": no such file");
  if (std::filesystem::is_directory(path)) throw ConfigError(path + ": is a directory, expected a YAML file");
  return read_small_file(path, kMostBytes);
}

YamlTree parse_yaml(const std::string& text, const std::string& path, Problems& problems) {
  const auto refuse = [&](ptrdiff_t line, std::string_view why) {
    problems.add_at(fmt::format("{}:{}", path, line), "", why);
  };
  // The parser treats some control characters as the end of the file, which would hide what follows them.
  const auto bad = std::ranges::find_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\r' && c != '\n'; });
  if (bad != text.end()) {
    refuse(std::count(text.begin(), bad, '\n') + 1,
           fmt::format("control character 0x{:02x}, expected a YAML text", *bad));
    return {.root = {}, .whole = false};
  }
  const Lines lines = lines_of(text);
  YamlNode documents;
  YamlTree tree;
  const auto parse = [&](const std::string& whole, YamlNode& into) {
    std::istringstream in(whole);
    YAML::Parser parser(in);
    TreeBuilder builder(into, lines);
    parser.HandleNextDocument(builder);
    return static_cast<bool>(parser);  // true: another document follows
  };
  try {
    if (parse(text, documents)) problems.add_at(path, "", "more than one YAML document, expected one");
    // The parser accepts the end of the file as the end of a quoted text, but not an end-of-document marker.
    YamlNode ignored;
    parse(text + "\n...\n", ignored);
  } catch (const YAML::Exception& error) {
    refuse(error.mark.line + 1, in_words(error, lines));
    tree.whole = false;
  }
  if (!documents.items.empty()) tree.root = std::move(documents.items[0]);
  if (!tree.root.refusal.empty()) refuse(tree.root.line, tree.root.refusal);
  return tree;
}

void YamlReader::entries(const YamlNode& node, const std::string& where, const Entry& each) {
  if (node.kind != YamlNode::map) return problem(node, where, "expected a map of keys, found " + found_text(node));
  std::map<std::string_view, const YamlNode*> seen;
  // After a syntax error the last key may lack its value.
  for (size_t i = 0; i + 1 < node.items.size(); i += 2) {
    const YamlNode &key = node.items[i], &value = node.items[i + 1];
    if (key.kind != YamlNode::scalar) {
      problem(key, where, "expected a key, found " + found_text(key));
      continue;
    }
    if (key.value.text.empty()) {
      problem(key, where, "there is no key before the ':', expected one");
      continue;
    }
    if (key.value.text.find('\0') != std::string::npos) {  // would truncate the message
      problem(key, where, "the key " + quote(key.value.text) + " has a NUL character");
      continue;
    }
    const std::string path = path_of(where, key.value.text);
    for (const YamlNode* part : {&key, &value})
      if (!part->refusal.empty()) problem(*part, path, part->refusal);
    const auto [first, is_new] = seen.try_emplace(key.value.text, &key);
    if (!is_new) problem(key, path, "duplicate key, first given at " + place(*first->second));
    else if (value.kind != YamlNode::alias) each(key, key.value.text, value);
  }
}

void YamlReader::map(const YamlNode& node, const std::string& where, const Handlers& handlers) {
  entries(node, where, [&](const YamlNode& key, const std::string& name, const YamlNode& value) {
    const auto found = std::ranges::find(handlers, name, &Handlers::value_type::first);
    if (found != handlers.end()) return found->second(value, path_of(where, name));
    std::vector<std::string_view> names;
    for (const auto& [known, handler] : handlers) names.push_back(known);
    unknown(key, where, name, names, "key");
  });
}

void YamlReader::unknown(const YamlNode& at, const std::string& where, std::string_view name,
                         const std::vector<std::string_view>& known, std::string_view what) {
  const std::string_view near = nearest(name, known);
  problem(at, path_of(where, name),
          near.empty() ? fmt::format("unknown {}; expected one of {}", what, fmt::join(known, ", "))
                       : fmt::format("unknown {} - did you mean {}?", what, near));
}

std::optional<std::string> YamlReader::scalar(const YamlNode& node, const std::string& where,
                                              std::string_view expected) {
  if (node.kind == YamlNode::scalar && !node.value.null) return node.value.text;
  problem(node, where, fmt::format("found {}, expected {}", found_text(node), expected));
  return {};
}

std::optional<std::string> YamlReader::text(const YamlNode& node, const std::string& where) {
  return value(node, where, "text", [](const std::string& text) {
    return text.empty() || text.size() > 4096 ? std::nullopt : std::optional(text);
  });
}

std::optional<int64_t> YamlReader::integer(const YamlNode& node, const std::string& where, int64_t low, int64_t high) {
  return value(node, where, fmt::format("an integer from {} to {}", low, high), [&](const std::string& text) {
    const auto number = parse_integer(text);
    return number && *number >= low && *number <= high ? number : std::nullopt;
  });
}

}  // namespace trivet
