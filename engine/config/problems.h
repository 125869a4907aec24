// Problems: everything that is wrong with a configuration, collected and then thrown as one ConfigError, each on a
// line that says where the value came from:
//
//   run.yaml:12: model.num_attention_heads: found 0, expected an integer from 1 to 1000000
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/check.h"

namespace trivet {

// The origin of a value.
struct Origin {
  enum Kind { by_default, file, set, level, derived } kind = by_default;
  std::string where;  // file: "run.yaml:12". set, level: the argument of --set. derived: the formula, "4 * hidden_size"
};
std::string to_string(const Origin& origin);

// By "section.key"; a value without an entry is the default.
using Origins = std::map<std::string, Origin, std::less<>>;

// An invalid value of one key.
struct KeyError : ConfigError {
  KeyError(std::string of, const std::string& what) : ConfigError(what), key(std::move(of)) {}
  std::string key;
};

class Problems {
 public:
  // `source` names the configuration where a key has no location of its own; both must outlive this object.
  Problems(const std::string& source, const Origins& origins) : source_(source), origins_(origins) {}

  // Add a problem at the place the key's value came from, or at `where`.
  void add(std::string_view key, std::string_view text);
  void add_at(std::string_view where, std::string_view key, std::string_view text);

  // Marks the key as faulty without adding a line: its value was lost to a problem already reported.
  void mute(std::string_view key) { keys_.emplace(key); }

  // True if none of these keys has a problem so far, so that checking them together makes sense.
  bool clean(const std::vector<std::string_view>& keys) const;

  // True if the file sets `key`, but a --set, a level, or resolve() set one of `keys`; or if a level of a study sets
  // `key`, because it is combined with every level of the other factors.
  bool overridden(std::string_view key, const std::vector<std::string_view>& keys) const;
  // Records that the key's value has no effect, for a reason outside the file. This is not a problem: resolve() resets
  // the key to its default and adds a note to the run.
  void leave_out(std::string_view key, std::string_view why);
  bool left_out(std::string_view key) const;
  struct LeftOut {
    std::string key, note;
  };
  const std::vector<LeftOut>& left_out() const { return left_out_; }

  // True if further problems are only counted, so that their wording does not matter.
  bool full() const { return count_ >= kMostLines; }
  bool empty() const { return count_ == 0; }
  void throw_if_any() const;  // ConfigError

 private:
  static constexpr size_t kMostLines = 40;
  std::string place_of(std::string_view key) const;

  const std::string& source_;
  const Origins& origins_;
  std::set<std::string, std::less<>> keys_;
  std::vector<std::string> lines_;  // at most kMostLines
  std::vector<LeftOut> left_out_;
  size_t count_ = 0;
};

// ---- hints: lower floors do not know the keys. They report what is missing as a ConfigError with a Lack; these
//      functions add the keys that require it or would help.

// The error's text; for a ConfigError with a Lack, including the keys.
std::string with_hint(const Error& error);

// Explains why a thread could not be started (no memory for its stack, or too many processes) and what would help.
std::string thread_problem(const std::string& what);

// Runs f; adds the hint to a ConfigError with a Lack, and rethrows a failure to start a thread as a ConfigError.
template <class F>
decltype(auto) naming_keys(F&& f) {
  try {
    return f();
  } catch (const ConfigError& error) {
    if (error.lack == Lack::none || error.lack == Lack::named) throw;
    throw ConfigError(with_hint(error), Lack::named);
  } catch (const std::system_error& error) {
    // std::thread's error adds no text to the code's message; errors of files and streams do.
    if (error.code() != std::errc::resource_unavailable_try_again || error.code().message() != error.what()) throw;
    throw ConfigError(thread_problem(error.what()));
  }
}

// Runs f, which opens what `key` names; rethrows its errors with the key in front.
template <class F>
decltype(auto) opening(std::string_view key, F&& f) {
  const auto text = [key](const Error& error) { return std::string(key) + ": " + error.what(); };
  try {
    return f();
  } catch (const ConfigError& error) {
    throw ConfigError(text(error), error.lack);
  } catch (const DataError& error) {
    throw DataError(text(error));
  } catch (const IoError& error) {
    throw IoError(text(error));
  }
}

}  // namespace trivet
