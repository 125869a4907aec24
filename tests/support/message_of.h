// The text of the error that a call throws.
#pragma once

#include <exception>
#include <gtest/gtest.h>
#include <string>

#include "base/check.h"

namespace trivet {

// The message of the E that f() throws; the expectation fails if it throws none.
template <class E = ConfigError, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& other) {
    ADD_FAILURE() << "another exception: " << other.what();
    return other.what();
  }
  ADD_FAILURE() << "no exception";
  return "";
}

}  // namespace trivet
