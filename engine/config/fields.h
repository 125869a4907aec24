// Fields: the single table of all configuration keys. Reading, --set, "did you mean", range checks, `trivet config` and
// config.resolved.yaml all walk it, so a new member of Config needs only its line in field_table.cc.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/scalar.h"
#include "engine/config/config.h"

namespace trivet {

// The default upper bound of numbers: most are used in fp32 arithmetic.
constexpr double kMostFloat = std::numeric_limits<float>::max();
// The interval of allowed numbers; an open end excludes its bound.
struct Numbers {
  double low = -std::numeric_limits<double>::infinity();
  double high = kMostFloat;
  bool low_open = false;
  std::string_view unit = {};  // empty: a plain number
};

// A value has an effect only if `holds` returns true. `holds` must tolerate out-of-range values.
struct Need {
  std::vector<std::string_view> of;  // the keys that `holds` reads
  bool (*holds)(const Config&);
  std::string_view otherwise;  // the continuation of "… has no effect"
};

struct Field {
  std::string_view name = {};   // "section.key"
  std::string_view about = {};  // one line
  Numbers numbers = {};         // for a number, or each number in a list
  bool required = false;        // the default means "not given"
  std::string_view empty = {};  // how an optional without a value is written: "auto"; empty: not an optional
  std::vector<std::string_view> words = {};  // for an enum, or each value in a list
  std::string_view takes = {};               // the text of expected(), if it cannot be derived
  bool list = false;                         // YAML may give a list; its items are joined by commas
  bool planned = false;                      // "auto" leaves the value to `trivet plan` (LoadedConfig::left_to_planner)

  std::vector<Need> needs = {};  // of a value other than the default

  // Set by the type of the member in config.h (field_types.h). `at` finds the member.
  std::string_view noun;  // "an integer"
  size_t size, alignment;
  bool (*read)(const Field&, const Scalar&, void* to);  // false: not a value of the type; `to` is then unspecified
  std::string (*write)(const Field&, const void*);      // as YAML
  bool (*fits)(const Field&, const void*);              // inside `numbers`, among `words`
  void (*copy)(const void* from, void* to);
  void* (*at)(Config&) = nullptr;

  std::string_view section() const { return name.substr(0, name.find('.')); }
  std::string_view key() const { return name.substr(name.find('.') + 1); }
};

// All fields, in the order of config.h.
const std::vector<Field>& fields();
const Field* find_field(std::string_view name);  // nullptr: no such key

// The values that the key accepts, as the end of a sentence: "an integer from 1 to 10000", "one of fp32, bf16", …
std::string expected(const Field& field);

// Stores the value, or leaves `config` unchanged and returns the problem: "found …, expected …".
std::optional<std::string> parse_field(const Field& field, const Scalar& scalar, Config& config);
// The problem with the value in `config`: out of range, or not among the words.
std::optional<std::string> check_field(const Field& field, const Config& config);

bool is_default(const Field& field, const Config& config);
void set_default(const Field& field, Config& config);

// The value as YAML; parse_field() turns it back into the same value, bit for bit.
std::string format_field(const Field& field, const Config& config);

}  // namespace trivet
