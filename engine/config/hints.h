// Hints: what the floors that know no keys refuse, with the keys that ask for it or that would help.
#pragma once

#include <string>

#include "kernels/base/check.h"

namespace trivet {

// The error's text, where it is a ConfigError of a Lack with the keys named.
std::string with_hint(const Error& error);

// Runs f; a ConfigError of a Lack is thrown on with its hint.
template <class F>
decltype(auto) naming_keys(F&& f) {
  try {
    return f();
  } catch (const ConfigError& error) {
    if (error.lack == Lack::none) throw;
    throw ConfigError(with_hint(error));
  }
}

}  // namespace trivet
