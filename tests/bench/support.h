// Shared by the benchmarks: options and the median.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fmt/format.h>
#include <map>
#include <string>
#include <vector>

namespace trivet {

// --help: prints the usage and exits.
inline void answer_help(int argc, char** argv, const std::string& usage) {
  if (argc < 2 || (argv[1] != std::string("--help") && argv[1] != std::string("-h"))) return;
  fmt::print("usage: {}{}\n", argv[0], usage);
  std::exit(0);
}

// Stores each `--name NUMBER` through the pointer in `known`. Anything else: prints a message and exits with 64.
inline void read_options(int argc, char** argv, const std::map<std::string, int64_t*>& known) {
  std::string names;
  for (const auto& [name, value] : known) names += fmt::format(" [{} N]", name);
  answer_help(argc, argv, names);
  const auto refuse = [&](const std::string& why) {
    fmt::print(stderr, "{}; usage: {}{}\n", why, argv[0], names);
    std::exit(64);
  };
  for (int i = 1; i < argc; i += 2) {
    const auto option = known.find(argv[i]);
    if (option == known.end()) refuse(fmt::format("unknown option {}", argv[i]));
    if (i + 1 == argc) refuse(fmt::format("{} needs a number", argv[i]));
    char* end = nullptr;
    *option->second = std::strtoll(argv[i + 1], &end, 10);
    if (end == argv[i + 1] || *end != '\0') refuse(fmt::format("{}: found {}", argv[i], argv[i + 1]));
  }
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace trivet
