// For each member type of Config: how a value is read from a scalar, written as YAML, and checked.
//
//   integers, numbers, booleans        never quoted
//   text                              without control characters, at most 4096 bytes
//   an enum                           one of its words (config.h) that the field allows
//   an order of axes                  the axes' names, joined by '-'
//   an optional                       "auto", or the field's own word for it, means no value
//   a vector                          its items, joined by commas
#pragma once

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "engine/config/fields.h"

namespace trivet {

template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <class T>
inline constexpr bool kIsVector = false;
template <class T>
inline constexpr bool kIsVector<std::vector<T>> = true;

// Returns false if the scalar is not a value of type T; `to` is then unspecified.
template <class T>
bool read_value(const Field& field, const Scalar& scalar, T& to) {
  const auto store = [&](const auto& parsed) {
    if (scalar.quoted || !parsed) return false;
    to = static_cast<T>(*parsed);
    return true;
  };
  if constexpr (kIsOptional<T>) {
    to.reset();
    const bool none = scalar.text == field.empty || (scalar.null && !scalar.missing);
    if (none && (!scalar.quoted || !field.words.empty())) return true;
    return read_value(field, scalar, to.emplace());
  } else if constexpr (kIsVector<T>) {
    to.clear();
    const auto items = split_words(scalar.text);
    return std::ranges::all_of(items, [&](std::string_view item) {
      return read_value(field, {.text = std::string(item)}, to.emplace_back());
    });
  } else if constexpr (std::is_enum_v<T>) {
    const auto parsed = parse_word<T>(scalar.text);
    to = parsed.value_or(T{});
    return parsed && std::ranges::count(field.words, scalar.text) > 0;
  } else if constexpr (std::is_same_v<T, std::string>) {
    to = scalar.text;
    return !scalar.null && to.size() <= 4096 && std::ranges::none_of(to, is_control);
  } else if constexpr (std::is_same_v<T, AxisOrder>) {
    const auto order = parse_axis_order(scalar.text);
    to = order.value_or(kUsualOrder);
    return order.has_value();
  } else if constexpr (std::is_same_v<T, bool>) {
    return store(parse_truth(scalar.text));
  } else if constexpr (std::is_floating_point_v<T>) {
    return store(parse_number(scalar.text));
  } else {
    const auto parsed = parse_integer(scalar.text);
    return (!parsed || std::in_range<T>(*parsed)) && store(parsed);
  }
}

template <class T>
std::string write_value(const Field& field, const T& value) {
  if constexpr (kIsOptional<T>) {
    return value ? write_value(field, *value) : std::string(field.empty);
  } else if constexpr (kIsVector<T>) {
    std::string text;
    for (const auto& item : value) text += (text.empty() ? "" : ",") + write_value(field, item);
    return '"' + text + '"';
  } else if constexpr (std::is_enum_v<T>) {
    const auto number = static_cast<size_t>(value);
    return number < words_of(value).size() ? std::string(word_of(value)) : std::to_string(number);
  } else if constexpr (std::is_same_v<T, std::string>) {
    std::string text = "\"";
    for (const char c : value)
      if (is_control(c)) text += fmt::format("\\x{:02x}", c);
      else (text += c == '"' || c == '\\' ? "\\" : "") += c;
    return text + '"';
  } else if constexpr (std::is_same_v<T, AxisOrder>) {
    return '"' + to_text(value) + '"';
  } else {
    return fmt::format("{}", value);  // for a double, the shortest text that reads back exactly
  }
}

template <class T>
bool value_fits(const Field& field, const T& value) {
  if constexpr (kIsOptional<T>) {
    return !value || value_fits(field, *value);
  } else if constexpr (kIsVector<T>) {
    return std::ranges::all_of(value, [&](const auto& item) { return value_fits(field, item); });
  } else if constexpr (std::is_enum_v<T>) {
    return std::ranges::count(field.words, write_value(field, value)) > 0;
  } else if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    const auto& [low, high, low_open, unit] = field.numbers;
    const auto x = static_cast<double>(value);
    return std::isfinite(x) && (low_open ? x > low : x >= low) && x <= high;
  } else {
    return true;
  }
}

template <class T>
std::string_view noun_of() {
  if constexpr (kIsOptional<T>) return noun_of<typename T::value_type>();
  else if constexpr (kIsVector<T>) return "a list";
  else if constexpr (std::is_enum_v<T>) return "a word";
  else if constexpr (std::is_same_v<T, std::string>) return "text";
  else if constexpr (std::is_same_v<T, AxisOrder>) return "an order of axes";
  else if constexpr (std::is_same_v<T, bool>) return "true or false";
  else return std::is_floating_point_v<T> ? "a number" : "an integer";
}

template <class T>
std::vector<std::string_view> words_of_type() {
  if constexpr (kIsOptional<T> || kIsVector<T>) return words_of_type<typename T::value_type>();
  else if constexpr (std::is_enum_v<T>) {
    const auto words = words_of(T{});
    return {words.begin(), words.end()};
  } else return {};
}

// The part of a Field that depends only on its type.
template <class T>
Field field_of_type() {
  return {.empty = kIsOptional<T> ? "auto" : "",
          .words = words_of_type<T>(),
          .list = noun_of<T>() == "a list",
          .noun = noun_of<T>(),
          .size = sizeof(T),
          .alignment = alignof(T),
          .read = [](const Field& f, const Scalar& s, void* to) { return read_value(f, s, *static_cast<T*>(to)); },
          .write = [](const Field& f, const void* v) { return write_value(f, *static_cast<const T*>(v)); },
          .fits = [](const Field& f, const void* v) { return value_fits(f, *static_cast<const T*>(v)); },
          .copy = [](const void* from, void* to) { *static_cast<T*>(to) = *static_cast<const T*>(from); }};
}

// Declares a key: the member that holds its value, its meaning, and its valid range.
template <class T>
Field& add_field(std::vector<Field>& table, std::string_view name, void* (*at)(Config&), std::string_view about,
                 Numbers numbers = {}) {
  Field field = field_of_type<T>();
  field.name = name;
  field.about = about;
  field.numbers = numbers;
  field.at = at;
  return table.emplace_back(std::move(field));
}
constexpr Numbers range(double low, double high, std::string_view unit) {
  return {.low = low, .high = high, .unit = unit};
}
constexpr Numbers at_least(double low, std::string_view unit = {}) { return {.low = low, .unit = unit}; }
constexpr Numbers above(double low, std::string_view unit = {}) { return {.low = low, .low_open = true, .unit = unit}; }

}  // namespace trivet
