// Fields: the one table of all configuration keys. Loading, --set, "did you mean", range checks, `trivet config` and
// config.resolved.yaml all walk it, so a new member of Config needs one line in field_table.cc and nothing else.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/config/config.h"

namespace trivet {

// Where a value lives; the alternative is its type. An optional reads and prints "auto" when it is empty.
using FieldRef =
    std::variant<int64_t*, int*, double*, bool*, std::string*, std::optional<int64_t>*, std::optional<double>*>;

// The interval of allowed numbers; an open end excludes its bound.
struct Limits {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;
  bool high_open = false;
};

struct Field {
  std::string_view name;  // "section.key"
  FieldRef (*ref)(Config&);
  std::string_view about;  // one line
  Limits limits = {};
  std::vector<std::string_view> choices = {};  // of a text; empty: any
  bool required = false;                       // the default stands for "not given"

  std::string_view section() const { return name.substr(0, name.find('.')); }
  std::string_view key() const { return name.substr(name.find('.') + 1); }
  bool is_optional() const;
};

// In the order of config.h.
const std::vector<Field>& fields();
const Field* find_field(std::string_view name);  // nullptr: no such key

// What the key takes, as the end of a sentence: "an integer from 1 to 10000", "one of fp32, bf16", …
std::string expected(const Field& field);

// A scalar as written. `quoted`: YAML text in quotes, which is never a number, a truth value or "auto".
struct Scalar {
  std::string text;
  bool quoted = false;
  bool null = false;
};

// Stores the value. Otherwise leaves `config` as it is and returns the problem: "found …, expected …".
std::optional<std::string> parse_field(const Field& field, const Scalar& scalar, Config& config);
// The problem with the value `config` holds: out of range, or not among the choices.
std::optional<std::string> check_field(const Field& field, const Config& config);

// The value as YAML; parse_field of it gives the same value back, bit by bit.
std::string format_field(const Field& field, const Config& config);
bool same_values(const Config& a, const Config& b);

}  // namespace trivet
