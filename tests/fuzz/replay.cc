// The fuzz targets without a fuzzer: each runs its committed inputs, and each of these with seeded mutations of the
// kinds that a fuzzer makes. An input that ends the program, or that a sanitizer reports, is a failure.
//   fuzz_replay TARGET CORPUS MUTATIONS
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/files.h"

#define TARGET(name) int name##_fuzz(const uint8_t* data, size_t size);
extern "C" {
TRIVET_FUZZ_TARGETS
}
#undef TARGET

namespace {

using Random = std::mt19937_64;

size_t below(size_t n, Random& random) { return n == 0 ? 0 : random() % n; }

// Flips a bit, sets a byte, or removes, repeats or cuts off a range; one to four times.
std::string mutated(std::string text, Random& random) {
  for (size_t times = 1 + below(4, random); times > 0; --times) {
    const size_t at = below(text.size(), random), count = below(std::min<size_t>(text.size() - at, 64), random);
    switch (text.empty() ? 1 : below(5, random)) {
      case 0: text[at] = static_cast<char>(text[at] ^ (1 << below(8, random))); break;
      case 1: text.insert(at, 1, static_cast<char>(below(256, random))); break;
      case 2: text.erase(at, count); break;
      case 3: text.insert(below(text.size(), random), text.substr(at, count)); break;
      default: text.resize(at);
    }
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
#define TARGET(name) {#name, name##_fuzz},
  const std::map<std::string, int (*)(const uint8_t*, size_t)> targets{TRIVET_FUZZ_TARGETS};
#undef TARGET
  if (argc != 4 || !targets.contains(argv[1])) return std::fprintf(stderr, "fuzz_replay TARGET CORPUS MUTATIONS\n"), 64;
  std::vector<std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(argv[2])) files.push_back(file.path());
  std::ranges::sort(files);
  int64_t runs = 0;
  for (const std::string& file : files) {
    Random random(1);
    const std::string text = trivet::read_small_file(file, 1 << 20);
    for (int i = 0; i <= std::atoi(argv[3]); ++i, ++runs) {
      const std::string input = i == 0 ? text : mutated(text, random);
      std::fprintf(stderr, "\r%s, mutation %d", file.c_str(), i);  // the last one, if this run ends
      targets.at(argv[1])(reinterpret_cast<const uint8_t*>(input.data()), input.size());
    }
  }
  std::printf("\n%s: %lld runs\n", argv[1], static_cast<long long>(runs));
  return runs > 0 ? 0 : 1;
}
