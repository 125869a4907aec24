// What the data tests share: a directory of their own, datasets made of given documents, raw bytes in and out.
#pragma once

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <iterator>
#include <memory>
#include <random>
#include <stdlib.h>
#include <string>
#include <vector>

#include "engine/data/indexed_dataset.h"
#include "kernels/base/check.h"

namespace trivet {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "trivet-data-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) found.push_back(entry.path().filename());
    std::sort(found.begin(), found.end());
    return found;
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

using Documents = std::vector<std::vector<int32_t>>;

inline void write_dataset(const std::string& prefix, const Documents& documents, TokenType type = TokenType::u16) {
  IndexedDatasetWriter writer(prefix, type);
  for (const auto& document : documents) writer.add_document(document);
  writer.finish();
}

// The text of the E that `body` throws; a failed expectation where it throws none.
template <typename E>
std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& other) {
    ADD_FAILURE() << "threw something else: " << other.what();
    return "";
  }
  ADD_FAILURE() << "threw nothing";
  return "";
}

// Sentences of made-up words, the frequent ones short, with capitals, numbers and marks. Deterministic.
inline std::vector<std::string> made_up_sentences(int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::string> words(300), sentences(static_cast<size_t>(count));
  for (size_t i = 0; i < words.size(); ++i)
    for (size_t length = 1 + i / 40 + random() % 3; length-- > 0;) words[i] += "etaoinshrdlcumwfgyp"[random() % 19];
  for (std::string& sentence : sentences) {
    for (auto length = 3 + random() % 15; length-- > 0;) {
      const size_t rank = random() % (1 + random() % words.size());
      sentence += (sentence.empty() ? "" : " ") + words[rank];
      if (random() % 12 == 0) sentence += "; " + std::to_string(random() % 2000);
    }
    sentence[0] = static_cast<char>(std::toupper(sentence[0]));
    sentence += random() % 4 == 0 ? "\xc3\xa9!" : ".";
  }
  return sentences;
}

inline testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << '"' << text << "\" lacks \"" << part << '"';
}

}  // namespace trivet
