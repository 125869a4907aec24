#include "engine/config/fields.h"

#include <algorithm>
#include <cmath>
#include <fmt/ranges.h>

namespace trivet {
namespace {

// For functions that only read.
const void* value_of(const Field& field, const Config& config) { return field.at(const_cast<Config&>(config)); }

const Config& defaults() {
  static const Config all;
  return all;
}

std::string describe(const Numbers& n) {
  const bool low = std::isfinite(n.low), high = n.high < kMostFloat;
  if (low && high) return fmt::format(" {} {} to {}", n.low_open ? "above" : "from", n.low, n.high);
  if (low) return fmt::format(" {} {}", n.low_open ? "above" : "of at least", n.low);
  if (high) return fmt::format(" of at most {}", n.high);
  return "";
}

}  // namespace

const Field* find_field(std::string_view name) {
  const auto found = std::ranges::find(fields(), name, &Field::name);
  return found == fields().end() ? nullptr : &*found;
}

std::string expected(const Field& field) {
  if (!field.takes.empty()) return std::string(field.takes);
  const bool may_be_empty = !field.empty.empty();
  if (field.words.empty())
    return fmt::format("{}{}{}{}", field.noun, describe(field.numbers), may_be_empty ? ", or " : "", field.empty);
  return fmt::format("one of {}{}{}", field.empty, may_be_empty ? ", " : "", fmt::join(field.words, ", "));
}

std::optional<std::string> parse_field(const Field& field, const Scalar& scalar, Config& config) {
  Config trial = config;
  if (field.read(field, scalar, field.at(trial))) {
    auto problem = check_field(field, trial);
    if (!problem) config = std::move(trial);
    return problem;
  }
  if (scalar.null) return "found nothing, expected " + expected(field);
  const bool text = field.noun == "text", list = field.noun == "a list", words = !field.words.empty();
  std::string_view found = scalar.text;
  for (const std::string_view word : split_words(scalar.text))
    if (list && words && std::ranges::count(field.words, word) == 0) found = word;
  return fmt::format("found {}{}, expected {}{}", scalar.quoted && !text && !list && !words ? "the quoted text " : "",
                     quote(found), expected(field), text ? " without control characters, at most 4096 bytes" : "");
}

std::optional<std::string> check_field(const Field& field, const Config& config) {
  if (field.fits(field, value_of(field, config))) return {};
  const std::string found = format_field(field, config);
  const bool large = field.numbers.high == kMostFloat && parse_number(found).value_or(0) > kMostFloat;
  return fmt::format("found {}, expected {}{}", found, expected(field), large ? ", which fp32 can hold" : "");
}

bool is_default(const Field& field, const Config& config) {
  return format_field(field, config) == format_field(field, defaults());
}

void set_default(const Field& field, Config& config) { field.copy(value_of(field, defaults()), field.at(config)); }

std::string format_field(const Field& field, const Config& config) {
  return field.write(field, value_of(field, config));
}

}  // namespace trivet
