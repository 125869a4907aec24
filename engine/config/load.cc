#include "engine/config/load.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fmt/ranges.h>
#include <fstream>
#include <sstream>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include "engine/config/fields.h"
#include "engine/config/validate.h"
#include "engine/config/words.h"
#include "kernels/base/check.h"

namespace trivet {
namespace {

constexpr size_t kMostBytes = 1 << 20;
constexpr int kMostDepth = 16;

std::vector<std::string_view> section_names() {
  std::vector<std::string_view> names;
  for (const Field& field : fields())
    if (names.empty() || names.back() != field.section()) names.push_back(field.section());
  return names;
}

// Reports a key that does not exist, with the same word in other sections, or a word that looks like it.
void unknown_key(std::string_view where, std::string_view section, std::string_view key, Problems& problems) {
  if (problems.full()) return problems.add_at(where, key, "unknown key");
  std::vector<std::string_view> siblings, all;
  for (const Field& field : fields()) {
    all.push_back(field.key());
    if (field.section() == section) siblings.push_back(field.key());
  }
  const bool elsewhere = std::find(all.begin(), all.end(), key) != all.end();
  std::string_view near = elsewhere ? key : nearest(key, siblings);
  const bool here = !elsewhere && !near.empty();
  if (near.empty()) near = nearest(key, all);

  std::vector<std::string_view> meant;
  for (const Field& field : fields())
    if (field.key() == near && (!here || field.section() == section)) meant.push_back(field.name);
  for (const std::string_view name : meant) problems.mute(name);
  problems.add_at(where, fmt::format("{}.{}", section, key.substr(0, 100)),
                  meant.empty() ? fmt::format("unknown key; {} has {}", section, fmt::join(siblings, ", "))
                                : fmt::format("unknown key - did you mean {}?", fmt::join(meant, " or ")));
}

void unknown_section(std::string_view where, std::string_view name, Problems& problems) {
  if (problems.full()) return problems.add_at(where, name, "unknown section");
  const auto names = section_names();
  const std::string_view near = nearest(name.substr(0, name.find('.')), names);
  problems.add_at(where, name.substr(0, 100),
                  near.empty() ? fmt::format("unknown section; sections are {}", fmt::join(names, ", "))
                               : fmt::format("unknown section - did you mean {}?", near));
  for (const Field& field : fields())
    if (field.section() == near) problems.mute(field.name);
}

void mute_all(Problems& problems) {
  for (const Field& field : fields()) problems.mute(field.name);
}

bool is_section(std::string_view name) {
  return std::any_of(fields().begin(), fields().end(), [&](const Field& field) { return field.section() == name; });
}

// Walks the events of a YAML document, and so never builds a tree of what the file says, however deep or repeated.
class Reader : public YAML::EventHandler {
 public:
  Reader(LoadedConfig& loaded, Problems& problems) : loaded_(loaded), problems_(problems) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    if (skipping_ == 0) {
      problem(mark, "aliases (*name) are not supported: write the value out");
      item_done();
    }
  }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    scalar(mark, anchor, "", {.text = "", .quoted = false, .null = true});
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    scalar(mark, anchor, tag, {.text = value, .quoted = tag == "!", .null = false});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    if (skip_deeper(mark)) return;
    refuse(mark, anchor, "");
    if (level_ == Level::document) {
      problem(mark, "expected a map of sections, found a list");
      mute_all(problems_);
    } else if (!key_) problem(mark, "expected a key, found a list");
    else if (level_ == Level::sections) problem(mark, "expected a map of keys, found a list");
    else value_problem("found a list");
    skipping_ = 1;
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    if (skip_deeper(mark)) return;
    refuse(mark, anchor, tag);
    if (level_ == Level::document) {
      level_ = Level::sections;
    } else if (!key_) {
      problem(mark, "expected a key, found a map");
      skipping_ = 1;
    } else if (level_ == Level::sections) {
      if (known_section_) {
        section_ = *key_;
        level_ = Level::keys;
        key_.reset();
      } else {
        skipping_ = 1;
      }
    } else {
      value_problem("found a map");
      skipping_ = 1;
    }
  }

 private:
  enum class Level { document, sections, keys };

  bool skip_deeper(const YAML::Mark& mark) {
    if (skipping_ == 0) return false;
    if (++skipping_ > kMostDepth) throw YAML::ParserException(mark, "nested too deeply");
    return true;
  }
  void close() {
    if (skipping_ > 0) {
      if (--skipping_ == 0) item_done();
    } else if (level_ == Level::keys) {
      level_ = Level::sections;
      key_ = section_;
      item_done();
    }
  }
  // A key was read without its value yet, or the value that goes with key_ was.
  void item_done() {
    if (key_) {
      key_.reset();
    } else if (level_ != Level::document) {
      key_.emplace();  // stands for a key that was no scalar, and so is unknown
      field_ = nullptr;
      known_section_ = false;
    }
  }

  void scalar(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string& tag, const Scalar& scalar) {
    if (skipping_ > 0) return;
    refuse(mark, anchor, tag);
    if (level_ == Level::document) {
      if (scalar.null) return;
      problem(mark, "expected a map of sections, found " + quote(scalar.text));
      mute_all(problems_);
    } else if (!key_) {
      start_key(mark, scalar);
    } else {
      if (level_ == Level::keys) value(scalar);
      else if (known_section_ && !scalar.null) problem(mark, "expected a map of keys, found " + quote(scalar.text));
      item_done();
    }
  }
  void start_key(const YAML::Mark& mark, const Scalar& scalar) {
    key_ = scalar.text;
    key_mark_ = mark;
    field_ = nullptr;
    if (level_ == Level::sections) {
      known_section_ = is_section(scalar.text);
      if (!known_section_) unknown_section(place(mark), scalar.text, problems_);
      else if (!seen_.insert(scalar.text).second) problem(mark, "duplicate section");
      return;
    }
    field_ = find_field(fmt::format("{}.{}", section_, scalar.text));
    if (!field_) unknown_key(place(mark), section_, scalar.text, problems_);
    else if (!seen_.emplace(field_->name).second)
      problem(mark, "duplicate key, first given at " + to_string(loaded_.origins[std::string(field_->name)]));
  }
  void value(const Scalar& scalar) {
    if (!field_) return;
    loaded_.origins[std::string(field_->name)] = {Origin::file, place(key_mark_)};
    if (const auto text = parse_field(*field_, scalar, loaded_.config)) problems_.add(field_->name, *text);
  }
  void value_problem(std::string_view found) {
    if (field_)
      problems_.add_at(place(key_mark_), field_->name, fmt::format("{}, expected {}", found, expected(*field_)));
  }

  void refuse(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string& tag) {
    if (anchor != YAML::NullAnchor) problem(mark, "anchors (&name) are not supported");
    if (tag.size() > 1) problem(mark, "tags are not supported, found " + quote(tag));
  }
  std::string place(const YAML::Mark& mark) const { return fmt::format("{}:{}", loaded_.path, mark.line + 1); }
  void problem(const YAML::Mark& mark, std::string_view text) {
    const std::string key = key_ ? key_->substr(0, 100) : "";
    const bool both = level_ == Level::keys && !key.empty();
    problems_.add_at(place(mark),
                     both                    ? fmt::format("{}.{}", section_, key)
                     : level_ == Level::keys ? section_
                                             : key,
                     text);
  }

  LoadedConfig& loaded_;
  Problems& problems_;
  Level level_ = Level::document;
  int skipping_ = 0;  // depth inside a list or map that has no place here
  std::string section_;
  bool known_section_ = false;
  std::optional<std::string> key_;  // read, its value not yet
  YAML::Mark key_mark_;
  const Field* field_ = nullptr;  // of key_ inside a section; null where it is unknown
  std::set<std::string, std::less<>> seen_;
};

// The parser takes some control characters for the end of the file, which would hide what follows them.
bool no_control_characters(const std::string& text, const std::string& path, Problems& problems) {
  int line = 1;
  for (const char c : text) {
    if (c == '\n') ++line;
    else if (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\r') {
      problems.add_at(fmt::format("{}:{}", path, line), "",
                      fmt::format("control character 0x{:02x}, expected a YAML text", c));
      mute_all(problems);
      return false;
    }
  }
  return true;
}

void read_yaml(const std::string& text, LoadedConfig& loaded, Problems& problems) {
  std::istringstream in(text);
  try {
    YAML::Parser parser(in);
    Reader reader(loaded, problems);
    parser.HandleNextDocument(reader);
    if (parser) problems.add_at(loaded.path, "", "more than one YAML document, expected one");
  } catch (const YAML::Exception& e) {
    problems.add_at(fmt::format("{}:{}", loaded.path, e.mark.line + 1), "", e.msg);
    mute_all(problems);  // what follows the error was not read
  }
}

void apply_set(const std::string& argument, LoadedConfig& loaded, Problems& problems) {
  const std::string where = "--set";
  const size_t equals = argument.find('=');
  const std::string name = argument.substr(0, equals);
  const size_t dot = name.find('.');
  if (equals == std::string::npos || dot == std::string::npos) {
    problems.add_at(where, "", fmt::format("found {}, expected section.key=value", quote(argument)));
    return;
  }
  const Field* field = find_field(name);
  if (!field) {
    const std::string section = name.substr(0, dot);
    if (is_section(section)) unknown_key(where, section, name.substr(dot + 1), problems);
    else unknown_section(where, name, problems);
    return;
  }
  loaded.origins[name] = {Origin::set, argument};
  if (const auto text = parse_field(*field, {.text = argument.substr(equals + 1)}, loaded.config))
    problems.add(name, *text);
}

}  // namespace

std::string read_yaml_text(const std::string& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (status.type() == std::filesystem::file_type::not_found) throw ConfigError(path + ": no such file");
  if (std::filesystem::is_directory(status)) throw ConfigError(path + ": is a directory, expected a YAML file");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw IoError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  std::string text(kMostBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) throw IoError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMostBytes) throw ConfigError(path + ": is larger than 1 MiB, expected a YAML file of a run");
  return text;
}

LoadedConfig load_config(const std::string& path, std::span<const std::string> sets) {
  return parse_config(read_yaml_text(path), path, sets);
}

LoadedConfig parse_config(const std::string& text, const std::string& path, std::span<const std::string> sets) {
  LoadedConfig loaded;
  loaded.path = path;
  Problems problems(loaded.path, loaded.origins);
  if (no_control_characters(text, path, problems)) read_yaml(text, loaded, problems);
  for (const std::string& argument : sets) apply_set(argument, loaded, problems);
  check_config(loaded, problems);
  problems.throw_if_any();
  return loaded;
}

Config parse_sets(std::span<const std::string> sets) {
  LoadedConfig loaded;
  Problems problems(loaded.path, loaded.origins);
  for (const std::string& argument : sets) apply_set(argument, loaded, problems);
  problems.throw_if_any();
  return loaded.config;
}

Config parse_saved_config(const std::map<std::string, std::string>& values, const std::string& source) {
  std::string text;
  std::string_view section;
  for (const Field& field : fields()) {
    const auto found = values.find(std::string(field.name));
    if (found == values.end()) continue;
    if (field.section() != section) {
      section = field.section();
      text += fmt::format("{}:\n", section);
    }
    text += fmt::format("  {}: {}\n", field.key(), found->second);
  }
  LoadedConfig loaded;
  loaded.path = source;
  Problems problems(loaded.path, loaded.origins);
  if (no_control_characters(text, source, problems)) read_yaml(text, loaded, problems);
  for (const Field& field : fields())
    if (const auto problem = check_field(field, loaded.config); problem && values.contains(std::string(field.name)))
      problems.add_at(source, field.name, *problem);
  try {
    problems.throw_if_any();
  } catch (const ConfigError& error) {
    throw DataError(error.what());
  }
  return loaded.config;
}

std::string to_yaml(const Config& config) {
  std::string text;
  std::string_view section;
  for (const Field& field : fields()) {
    if (field.section() != section) {
      section = field.section();
      text += fmt::format("{}{}:\n", text.empty() ? "" : "\n", section);
    }
    text += fmt::format("  {}: {}\n", field.key(), format_field(field, config));
  }
  return text;
}

}  // namespace trivet
