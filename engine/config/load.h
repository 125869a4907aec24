// load_config: turns a run's YAML file and the command line's --set arguments into a Config, and records where each of
// its values came from. Needs neither ranks nor devices, so a bad file is rejected before anything is allocated.
//
// The file is a map of sections, each a map of scalars. A misplaced or unknown key, a duplicate, a list where none is
// accepted, or an anchor is an error, never ignored. Files of more than 1 MiB are rejected.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/config.h"
#include "engine/config/problems.h"

namespace trivet {

struct LoadedConfig {
  Config config = {};
  Origins origins = {};
  std::string path = {};
  // Keys set to "auto" that only `trivet plan` can resolve; in `config` they hold their defaults.
  std::vector<std::string_view> left_to_planner = {};
  // False for a plan or for inference, which may lack the keys that only training needs: data and run length. The
  // `plan` keys are valid only if this is false.
  bool trains = true;
};

// `sets` are "section.key=value" strings, with the value as plain text or in YAML notation: [a, b], "a", ~. They
// override the file, and later ones override earlier ones. Throws one ConfigError with every problem that can be found
// without knowing the ranks and the dataset, one per line; IoError if the file cannot be read. `levels` have the same
// form, for a study's factors: resolve() leaves out a level that has no effect.
LoadedConfig load_config(const std::string& path, std::span<const std::string> sets = {},
                         std::span<const std::string> levels = {});
// Same, for a plan or inference: LoadedConfig::trains is false.
LoadedConfig load_untrained(const std::string& path, std::span<const std::string> sets = {});

// Same, from a string; `path` only names it in messages.
LoadedConfig parse_config(const std::string& text, const std::string& path, std::span<const std::string> sets = {},
                          std::span<const std::string> levels = {});

// Same, on top of an existing configuration instead of a file. Throws ConfigError.
LoadedConfig with_sets(LoadedConfig loaded, std::span<const std::string> sets);

// The defaults with `sets` applied, without check_config(). Throws ConfigError.
Config parse_sets(std::span<const std::string> sets);

// The keys whose values differ between two configurations, with the values as format_field() writes them.
struct KeyDifference {
  std::string_view key;  // "section.key"
  std::string a, b;
};
std::vector<KeyDifference> differences(const Config& a, const Config& b);

// The Config of another run, from "section.key" -> value as YAML, as format_field() writes it: absent keys get their
// defaults, keys unknown to this version are ignored, and rules that relate several values are not checked. Throws
// DataError naming `source`.
Config parse_saved_config(const std::map<std::string, std::string>& values, const std::string& source);

struct Field;
struct Scalar;
struct YamlNode;
// The value of a key; a list becomes its items joined by commas. Empty if the key does not accept a list, or if an
// item is not a scalar or contains a comma.
std::optional<Scalar> scalar_of(const Field& field, const YamlNode& node);

// Every key and its value, except a tool's section if all its values are defaults, so that a program without the tool
// can read the rest. load_config reads it back as the same Config.
std::string to_yaml(const Config& config);

}  // namespace trivet
