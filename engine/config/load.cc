#include "engine/config/load.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <set>

#include "base/check.h"
#include "engine/config/fields.h"
#include "engine/config/validate.h"
#include "engine/config/yaml.h"

namespace trivet {
namespace {

std::vector<std::string_view> section_names() {
  std::vector<std::string_view> names;
  for (const Field& field : fields())
    if (names.empty() || names.back() != field.section()) names.push_back(field.section());
  return names;
}

// The first name that contains all words of the key: num_attention_heads for num_heads. Empty if none does.
std::string_view with_words_of(std::string_view key, const std::vector<std::string_view>& names) {
  if (key.size() > 100) return "";
  const auto has_all = [&](std::string_view name) {
    for (size_t at = 0; at <= key.size();) {
      const std::string_view word = key.substr(at, key.find('_', at) - at);
      if (fmt::format("_{}_", name).find(fmt::format("_{}_", word)) == std::string::npos) return false;
      at += word.size() + 1;
    }
    return true;
  };
  const auto found = std::ranges::find_if(names, has_all);
  return found == names.end() ? "" : *found;
}

// True for keys of Megatron-LM or NeMo features that Trivet lacks, recognised by parts of their names.
bool is_unsupported(std::string_view key) {
  constexpr std::string_view kParts =
      "wandb,expert,moe,fp8_margin,fp8_interval,fp8_amax,fp8_dot,fp8_multi,fp4,fp16,loss_scale,hierarchical_context,"
      "lora,peft,multi_latent,mtp_,mamba,offload,transformer_impl";
  return std::ranges::any_of(split_words(kParts), [&](std::string_view part) { return key.find(part) != key.npos; });
}
constexpr auto kUnsupported = "is not supported: Trivet has no such feature; `trivet config --keys` lists what it has";

// Reports a key that does not exist, and suggests the same word in other sections, or a similar word.
void unknown_key(std::string_view where, std::string_view section, std::string_view key, Problems& problems) {
  if (problems.full()) return problems.add_at(where, key, "unknown key");
  if (is_unsupported(key))
    return problems.add_at(where, fmt::format("{}.{}", section, key.substr(0, 100)), kUnsupported);
  std::vector<std::string_view> siblings, all;
  for (const Field& field : fields()) {
    all.push_back(field.key());
    if (field.section() == section) siblings.push_back(field.key());
  }
  const bool elsewhere = std::find(all.begin(), all.end(), key) != all.end();
  std::string_view near = elsewhere ? key : nearest(key, siblings);
  const bool here = !elsewhere && !near.empty();
  if (near.empty()) near = nearest(key, all);
  if (near.empty()) near = with_words_of(key, siblings);

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
  const std::string_view section = name.substr(0, name.find('.'));
  if (const auto of_tools = tool_sections(); std::ranges::count(of_tools, section, &ToolSection::name) > 0) {
    for (const Field& field : fields()) problems.mute(field.name);  // the tool might have set them
    return problems.add_at(where, name,
                           "belongs to a tool that this program, the engine alone, lacks; expected trivet from a build "
                           "with -DTRIVET_TOOLS=ON");
  }
  if (is_unsupported(section)) return problems.add_at(where, name.substr(0, 100), kUnsupported);
  const auto names = section_names();
  const std::string_view near = nearest(section, names);
  problems.add_at(where, name.substr(0, 100),
                  near.empty() ? fmt::format("unknown section; sections are {}", fmt::join(names, ", "))
                               : fmt::format("unknown section - did you mean {}?", near));
  for (const Field& field : fields())
    if (field.section() == near) problems.mute(field.name);
}

bool is_section(std::string_view name) { return std::ranges::count(fields(), name, &Field::section) > 0; }

// The value of a --set: bracketed lists, quoted text and null are parsed as YAML; all else is taken literally.
YamlNode value_of_set(const Field& field, const std::string& text) {
  const bool quoted = text.starts_with('"') || text.starts_with('\''), list = field.list && text.starts_with('['),
             null = field.noun != "text" && (text == "~" || text == "null" || text == "Null" || text == "NULL");
  const std::string where = "--set";
  const Origins none;
  Problems problems(where, none);
  if (quoted || list || null)
    if (const YamlTree tree = parse_yaml(text, where, problems); problems.empty()) return tree.root;
  return {.value = {.text = text}};
}

// Stores the value, or records that it is left to the planner. On failure returns the problem, as parse_field() does.
std::optional<std::string> store(const Field& field, const YamlNode& value, LoadedConfig& loaded) {
  std::erase(loaded.left_to_planner, field.name);
  const auto whole = scalar_of(field, value);
  if (!whole)
    return fmt::format("found {}, expected {}{}", found_text(value), expected(field),
                       field.list ? ", or a list of values that contain no commas" : "");
  const Scalar& scalar = *whole;
  if (!field.planned || scalar.quoted || scalar.text != "auto") return parse_field(field, scalar, loaded.config);
  loaded.left_to_planner.push_back(field.name);
  set_default(field, loaded.config);
  return {};
}

class ConfigReader : YamlReader {
 public:
  ConfigReader(LoadedConfig& loaded, Problems& problems) : YamlReader(loaded.path, problems), loaded_(loaded) {}

  void read(const std::string& text) {
    const YamlTree tree = parse_yaml(text, loaded_.path, problems_);
    const bool map = tree.root.kind == YamlNode::map;
    if (map) entries(tree.root, "", [&](auto&... entry) { read_section(entry...); });
    else if (!tree.root.is_null()) problem(tree.root, "", "expected a map of sections, found " + found_text(tree.root));
    // Keys in a part that was not read must not be reported as missing.
    if (!tree.whole || !(map || tree.root.is_null()))
      for (const Field& field : fields()) problems_.mute(field.name);
  }

 private:
  void read_section(const YamlNode& at, const std::string& section, const YamlNode& keys) {
    if (!is_section(section)) return unknown_section(place(at), section, problems_);
    if (keys.is_null()) return;
    entries(keys, section, [&](const YamlNode& key, const std::string& name, const YamlNode& value) {
      const Field* field = find_field(fmt::format("{}.{}", section, name));
      if (!field) return unknown_key(place(key), section, name, problems_);
      loaded_.origins[std::string(field->name)] = {Origin::file, place(key)};
      if (const auto wrong = store(*field, value, loaded_)) problems_.add(field->name, *wrong);
    });
  }

  LoadedConfig& loaded_;
};

void apply_set(const std::string& argument, LoadedConfig& loaded, Problems& problems, Origin::Kind kind = Origin::set) {
  const std::string where = "--set";
  const size_t equals = argument.find('=');
  const std::string name = argument.substr(0, equals);
  const size_t dot = name.find('.');
  if (equals == std::string::npos || dot == std::string::npos) {
    std::vector<std::string_view> meant;
    for (const Field& each : fields())
      if (each.key() == name) meant.push_back(each.name);
    problems.add_at(
        where, "",
        fmt::format("found {}, expected section.key=value{}{}{}", quote(argument),
                    meant.empty() ? "" : " - did you mean ", fmt::join(meant, " or "), meant.empty() ? "" : "?"));
    return;
  }
  const Field* field = find_field(name);
  if (!field) {
    const std::string section = name.substr(0, dot);
    if (is_section(section)) unknown_key(where, section, name.substr(dot + 1), problems);
    else unknown_section(where, name, problems);
    return;
  }
  loaded.origins[name] = {kind, argument};
  const YamlNode value = value_of_set(*field, argument.substr(equals + 1));
  if (const auto wrong = store(*field, value, loaded)) problems.add(name, *wrong);
}

// Applies to `loaded`, in this order, the values in `text` (unless null), `sets` and `levels`.
LoadedConfig read_over(LoadedConfig loaded, const std::string* text, std::span<const std::string> sets,
                       std::span<const std::string> levels) {
  Problems problems(loaded.path, loaded.origins);
  if (text) ConfigReader(loaded, problems).read(*text);
  for (const std::string& argument : sets) apply_set(argument, loaded, problems);
  for (const std::string& argument : levels) apply_set(argument, loaded, problems, Origin::level);
  check_config(loaded, problems);
  problems.throw_if_any();
  return loaded;
}

// YAML text of `values` (by "section.key"), section by section.
std::string yaml_of(const std::map<std::string, std::string>& values) {
  std::string text;
  std::string_view section;
  for (const Field& field : fields()) {
    const auto found = values.find(std::string(field.name));
    if (found == values.end()) continue;
    if (field.section() != section) {
      section = field.section();
      text += fmt::format("{}{}:\n", text.empty() ? "" : "\n", section);
    }
    text += fmt::format("  {}: {}\n", field.key(), found->second);
  }
  return text;
}

}  // namespace

std::optional<Scalar> scalar_of(const Field& field, const YamlNode& node) {
  if (node.kind == YamlNode::scalar) return node.value;
  if (node.kind != YamlNode::list || !field.list) return std::nullopt;
  Scalar joined;
  for (const YamlNode& item : node.items) {
    if (item.kind != YamlNode::scalar || item.value.null || !item.refusal.empty() ||
        item.value.text.find(',') != std::string::npos)
      return std::nullopt;
    joined.text += (&item == node.items.data() ? "" : ",") + item.value.text;
  }
  return joined;
}

LoadedConfig load_config(const std::string& path, std::span<const std::string> sets,
                         std::span<const std::string> levels) {
  return parse_config(read_yaml_text(path), path, sets, levels);
}

LoadedConfig load_untrained(const std::string& path, std::span<const std::string> sets) {
  const std::string text = read_yaml_text(path);
  return read_over({.path = path, .trains = false}, &text, sets, {});
}

LoadedConfig parse_config(const std::string& text, const std::string& path, std::span<const std::string> sets,
                          std::span<const std::string> levels) {
  return read_over({.path = path}, &text, sets, levels);
}

LoadedConfig with_sets(LoadedConfig loaded, std::span<const std::string> sets) {
  return read_over(std::move(loaded), nullptr, sets, {});
}

Config parse_sets(std::span<const std::string> sets) {
  LoadedConfig loaded;
  Problems problems(loaded.path, loaded.origins);
  for (const std::string& argument : sets) apply_set(argument, loaded, problems);
  problems.throw_if_any();
  return loaded.config;
}

std::vector<KeyDifference> differences(const Config& a, const Config& b) {
  std::vector<KeyDifference> found;
  for (const Field& field : fields())
    if (KeyDifference one{field.name, format_field(field, a), format_field(field, b)}; one.a != one.b)
      found.push_back(std::move(one));
  return found;
}

Config parse_saved_config(const std::map<std::string, std::string>& values, const std::string& source) {
  LoadedConfig loaded{.path = source};
  Problems problems(loaded.path, loaded.origins);
  ConfigReader(loaded, problems).read(yaml_of(values));
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
  const auto has_values = [&](std::string_view section) {
    return std::ranges::any_of(
        fields(), [&](const Field& field) { return field.section() == section && !is_default(field, config); });
  };
  std::set<std::string_view> left_out;
  for (const ToolSection& section : tool_sections())
    if (!has_values(section.name)) left_out.insert(section.name);
  std::map<std::string, std::string> values;
  for (const Field& field : fields())
    if (!left_out.contains(field.section())) values[std::string(field.name)] = format_field(field, config);
  return yaml_of(values);
}

}  // namespace trivet
