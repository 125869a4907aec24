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
  std::string where;  // file: "run.yaml:12". set, level: the argument of --set. derived: how, "4 * hidden_size"
};
std::string to_string(const Origin& origin);

// By "section.key"; what is absent is the default.
using Origins = std::map<std::string, Origin, std::less<>>;

// An invalid value of one key.
struct KeyError : ConfigError {
  KeyError(std::string of, const std::string& what) : ConfigError(what), key(std::move(of)) {}
  std::string key;
};

class Problems {
 public:
  // `source` names the configuration where a key has no place of its own; both outlive this.
  Problems(const std::string& source, const Origins& origins) : source_(source), origins_(origins) {}

  // At the place the key's value came from, or at `where`.
  void add(std::string_view key, std::string_view text);
  void add_at(std::string_view where, std::string_view key, std::string_view text);

  // Counts the key as having a problem without a line: its value was lost to another problem.
  void mute(std::string_view key) { keys_.emplace(key); }

  // No problem so far with any of these keys, so that a check of how they go together makes sense.
  bool clean(const std::vector<std::string_view>& keys) const;

  // True if the command line (--set, or a value that was left out) decided one of `keys`, but the file gives `key`; or
  // a level of a study gives it, which goes with every level of the other factors.
  bool overridden(std::string_view key, const std::vector<std::string_view>& keys) const;
  // The key's value has no effect, for a reason that lies outside the file. It is no problem: resolve() gives the key
  // its default, and the run a note.
  void leave_out(std::string_view key, std::string_view why);
  bool left_out(std::string_view key) const;
  struct LeftOut {
    std::string key, note;
  };
  const std::vector<LeftOut>& left_out() const { return left_out_; }

  // Further problems are only counted: no need to word them well.
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

// ---- hints: the floors below know no keys. What they lack is a ConfigError of a Lack; here it gets the keys that ask
//      for it or that would help.

// The error's text, where it is a ConfigError of a Lack with the keys named.
std::string with_hint(const Error& error);

// Why a thread could not be started, and what would help: for want of memory for its stack, or of a process number.
std::string thread_problem(const std::string& what);

// Runs f; a ConfigError of a Lack is thrown on with its hint, and a thread that does not start as a ConfigError.
template <class F>
decltype(auto) naming_keys(F&& f) {
  try {
    return f();
  } catch (const ConfigError& error) {
    if (error.lack == Lack::none || error.lack == Lack::named) throw;
    throw ConfigError(with_hint(error), Lack::named);
  } catch (const std::system_error& error) {
    // As std::thread throws it: with no words of its own, which those of a file or stream have.
    if (error.code() != std::errc::resource_unavailable_try_again || error.code().message() != error.what()) throw;
    throw ConfigError(thread_problem(error.what()));
  }
}

// Runs f, which opens what `key` names; its errors are thrown on with the key in front.
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
