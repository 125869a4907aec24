#include "engine/config/fields.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "engine/config/scalar.h"
#include "engine/config/words.h"

namespace trivet {
namespace {

// The functions below only read through it.
FieldRef read(const Field& field, const Config& config) { return field.ref(const_cast<Config&>(config)); }

bool inside(const Limits& limits, double x) {
  return (limits.low_open ? x > limits.low : x >= limits.low) &&
         (limits.high_open ? x < limits.high : x <= limits.high);
}

std::string describe(const Limits& limits) {
  const bool low = std::isfinite(limits.low), high = std::isfinite(limits.high);
  if (low && high)
    return fmt::format(" {} {} {} {}", limits.low_open ? "above" : "from", limits.low,
                       limits.high_open ? "to below" : "to", limits.high);
  if (low) return fmt::format(" {} {}", limits.low_open ? "above" : "of at least", limits.low);
  if (high) return fmt::format(" {} {}", limits.high_open ? "below" : "of at most", limits.high);
  return "";
}

std::string yaml_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\', out += c;
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) out += fmt::format("\\x{:02x}", c);
    else out += c;
  }
  return out + '"';
}

// How a value of each type is read from text: false where the text is not one.
struct Parse {
  const Scalar& scalar;
  bool operator()(int64_t* to) const { return store(to, parse_integer(scalar.text)); }
  bool operator()(int* to) const {
    const auto value = parse_integer(scalar.text);
    if (!value || *value < std::numeric_limits<int>::min() || *value > std::numeric_limits<int>::max()) return false;
    return store(to, value);
  }
  bool operator()(double* to) const { return store(to, parse_number(scalar.text)); }
  bool operator()(bool* to) const { return store(to, parse_truth(scalar.text)); }
  bool operator()(std::string* to) const {
    const bool control = std::any_of(scalar.text.begin(), scalar.text.end(),
                                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
    if (scalar.null || control || scalar.text.size() > 4096) return false;
    *to = scalar.text;
    return true;
  }
  template <class T>
  bool operator()(std::optional<T>* to) const {
    if (!scalar.quoted && (scalar.null || scalar.text == "auto" || scalar.text.empty())) {
      to->reset();
      return true;
    }
    T value;
    if (!(*this)(&value)) return false;
    *to = value;
    return true;
  }

 private:
  template <class T, class U>
  bool store(T* to, const std::optional<U>& value) const {
    if (scalar.quoted || scalar.null || !value) return false;
    *to = static_cast<T>(*value);
    return true;
  }
};

struct Format {
  const Field& field;
  std::string operator()(const int64_t* v) const { return std::to_string(*v); }
  std::string operator()(const int* v) const { return std::to_string(*v); }
  std::string operator()(const double* v) const { return fmt::format("{}", *v); }  // shortest that reads back exactly
  std::string operator()(const bool* v) const { return *v ? "true" : "false"; }
  std::string operator()(const std::string* v) const { return field.choices.empty() ? yaml_quoted(*v) : *v; }
  template <class T>
  std::string operator()(const std::optional<T>* v) const {
    return *v ? (*this)(&**v) : "auto";
  }
};

}  // namespace

bool Field::is_optional() const {
  Config config;
  const FieldRef value = ref(config);
  return std::holds_alternative<std::optional<int64_t>*>(value) ||
         std::holds_alternative<std::optional<double>*>(value);
}

const Field* find_field(std::string_view name) {
  for (const Field& field : fields())
    if (field.name == name) return &field;
  return nullptr;
}

std::string expected(const Field& field) {
  Config config;
  struct Kind {
    const char* operator()(int64_t*) const { return "an integer"; }
    const char* operator()(int*) const { return "an integer"; }
    const char* operator()(double*) const { return "a number"; }
    const char* operator()(bool*) const { return "true or false"; }
    const char* operator()(std::string*) const { return "text"; }
    const char* operator()(std::optional<int64_t>*) const { return "an integer"; }
    const char* operator()(std::optional<double>*) const { return "a number"; }
  };
  if (!field.choices.empty()) return "one of " + join(field.choices, ", ");
  return std::visit(Kind{}, field.ref(config)) + describe(field.limits) + (field.is_optional() ? ", or auto" : "");
}

std::optional<std::string> parse_field(const Field& field, const Scalar& scalar, Config& config) {
  Config trial = config;
  if (std::visit(Parse{scalar}, field.ref(trial))) {
    auto problem = check_field(field, trial);
    if (!problem) config = std::move(trial);
    return problem;
  }
  if (scalar.null) return "found nothing, expected " + expected(field);
  const bool is_text = std::holds_alternative<std::string*>(field.ref(config));
  return fmt::format("found {}{}, expected {}{}", scalar.quoted && !is_text ? "the quoted text " : "",
                     quote(scalar.text), expected(field),
                     is_text ? " without control characters, at most 4096 bytes" : "");
}

std::optional<std::string> check_field(const Field& field, const Config& config) {
  struct Number {
    std::optional<double> operator()(const int64_t* v) const { return static_cast<double>(*v); }
    std::optional<double> operator()(const int* v) const { return *v; }
    std::optional<double> operator()(const double* v) const { return *v; }
    std::optional<double> operator()(const bool*) const { return {}; }
    std::optional<double> operator()(const std::string*) const { return {}; }
    std::optional<double> operator()(const std::optional<int64_t>* v) const {
      return *v ? std::optional<double>(static_cast<double>(**v)) : std::nullopt;
    }
    std::optional<double> operator()(const std::optional<double>* v) const { return *v; }
  };
  const FieldRef value = read(field, config);
  if (const auto number = std::visit(Number{}, value);
      number && !(std::isfinite(*number) && inside(field.limits, *number)))
    return fmt::format("found {}, expected {}", format_field(field, config), expected(field));
  if (!field.choices.empty()) {
    const std::string& text = *std::get<std::string*>(value);
    if (std::find(field.choices.begin(), field.choices.end(), text) == field.choices.end())
      return fmt::format("found {}, expected {}", quote(text), expected(field));
  }
  return {};
}

std::string format_field(const Field& field, const Config& config) {
  return std::visit(Format{field}, read(field, config));
}

bool same_values(const Config& a, const Config& b) {
  return std::all_of(fields().begin(), fields().end(),
                     [&](const Field& field) { return format_field(field, a) == format_field(field, b); });
}

}  // namespace trivet
