// load_config: a run's YAML file and the command line's --set arguments become a Config that remembers where each of
// its values came from. Needs neither ranks nor devices, so a bad file is refused before anything is allocated.
//
// The file is a map of sections of scalars. A key of its own in the wrong place, an unknown key, a duplicate, a list,
// an anchor is an error, never ignored. Files of more than 1 MiB are refused.
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
  // Keys given as "auto" whose values only `trivet plan` chooses; in `config` they have their defaults.
  std::vector<std::string_view> left_to_planner = {};
  // False: a plan, or inference, which may lack keys that only training needs, data and length; the keys of `plan` are
  // valid there alone.
  bool trains = true;
};

// `sets` are "section.key=value" texts, with the value as it is or in YAML's notation: [a, b], "a", ~. They win over
// the file, and later ones over earlier ones. Throws one ConfigError with every problem that can be seen without
// knowing the ranks and the dataset, one a line; IoError when the file cannot be read. `levels` are the same, of a
// study's factors: one that has no effect is left out by resolve().
LoadedConfig load_config(const std::string& path, std::span<const std::string> sets = {},
                         std::span<const std::string> levels = {});
// The same of a run that is not trained.
LoadedConfig load_untrained(const std::string& path, std::span<const std::string> sets = {});

// The same from text; `path` only names it.
LoadedConfig parse_config(const std::string& text, const std::string& path, std::span<const std::string> sets = {},
                          std::span<const std::string> levels = {});

// The same on top of an existing configuration instead of a file. Throws ConfigError.
LoadedConfig with_sets(LoadedConfig loaded, std::span<const std::string> sets);

// The defaults with `sets` applied, not judged. Throws ConfigError.
Config parse_sets(std::span<const std::string> sets);

// The keys of which two configurations have other values, as format_field() writes them.
struct KeyDifference {
  std::string_view key;  // "section.key"
  std::string a, b;
};
std::vector<KeyDifference> differences(const Config& a, const Config& b);

// The Config of another run that kept "section.key" -> the value as YAML, as format_field() writes it: what is absent
// has its default, keys that this version does not know are passed over, and whether the values go together is not
// asked. Throws DataError naming `source`.
Config parse_saved_config(const std::map<std::string, std::string>& values, const std::string& source);

struct Field;
struct Scalar;
struct YamlNode;
// A value of a key, a list as its items with commas between. Empty if the key takes no list, or if an item is no
// scalar or has a comma.
std::optional<Scalar> scalar_of(const Field& field, const YamlNode& node);

// Every key and its value, but for a tool's section without one of its own (a program without the tool reads the rest):
// load_config reads it back as the same Config.
std::string to_yaml(const Config& config);

}  // namespace trivet
