// Errors: one family of exceptions and two functions, no macros; std::source_location gives the caller's line.
//
// The type decides the program's exit code (launch/main.cc); the text names the key, file or op, what was found and
// what was expected.
#pragma once

#include <new>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace trivet {

// A bug in Trivet or in its use as a library (exit code 70). The text ends with the file and line of the check.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
  virtual int exit_code() const { return 70; }
};
// The feature or resource that the device or build lacks. Callers that know the configuration add the key that requires
// it and a remedy, and set `named`.
enum class Lack { none, gpu, mpi, nccl, memory, links, block_scales, named };
// The user's configuration or command line cannot work (exit code 64).
struct ConfigError : Error {
  explicit ConfigError(const std::string& what, Lack of = Lack::none) : Error(what), lack(of) {}
  int exit_code() const override { return 64; }
  Lack lack;
};
// An input file (dataset, tokenizer, checkpoint) is invalid (exit code 65).
struct DataError : Error {
  using Error::Error;
  int exit_code() const override { return 65; }
};
// The operating system refused a read or a write (exit code 74).
struct IoError : Error {
  using Error::Error;
  int exit_code() const override { return 74; }
};

// A non-finite loss or gradient: the run must neither continue nor be requeued unchanged (exit code 93).
struct NumericsError : Error {
  explicit NumericsError(const std::string& what, int bad_rank = -1) : Error(what), rank(bad_rank) {}
  int exit_code() const override { return 93; }
  int rank;  // the rank that found the value; -1: unknown
};

// Running out of host memory throws a std::bad_alloc (base/host_memory.h). As with a layout that does not fit, the user
// must fix it.
inline int exit_code_of(const std::exception& error) {
  if (const auto* ours = dynamic_cast<const Error*>(&error)) return ours->exit_code();
  return dynamic_cast<const std::bad_alloc*>(&error) ? ConfigError("").exit_code() : Error("").exit_code();
}

// No progress for too long; the text names the rank that others wait for (exit code 124).
struct TimeoutError : Error {
  using Error::Error;
  int exit_code() const override { return 124; }
};

[[noreturn]] inline void fail(std::string_view what, std::source_location at = std::source_location::current()) {
  throw Error(std::string(what) + " [" + at.file_name() + ":" + std::to_string(at.line()) + "]");
}

inline void check(bool ok, std::string_view what, std::source_location at = std::source_location::current()) {
  if (!ok) [[unlikely]]
    fail(what, at);
}

}  // namespace trivet
