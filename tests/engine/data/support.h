// Shared by the data tests: datasets built from given documents, and texts.
#pragma once

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <gtest/gtest.h>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/data/indexed_dataset.h"
#include "engine/data/training_data.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_dir.h"

namespace trivet {

// The files of a folder, in alphabetical order.
inline std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) found.push_back(entry.path().filename());
  std::sort(found.begin(), found.end());
  return found;
}

using Documents = std::vector<std::vector<int32_t>>;

inline void write_dataset(const std::string& prefix, const Documents& documents, TokenType type = TokenType::u16) {
  IndexedDatasetWriter writer(prefix, type);
  for (const auto& document : documents) writer.add_document(document);
  writer.finish();
}

// Sentences of made-up words, frequent ones short, with capitals, numbers and punctuation. Deterministic.
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

inline TrainingData open_data(const DataConfig& data, int64_t seq_length, int64_t vocab_size, bool with_validation) {
  Config config;
  config.data = data;
  config.model.seq_length = seq_length;
  config.model.vocab_size = vocab_size;
  config.train.eval_interval = with_validation;
  return open_training_data(config, 100);
}

inline testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << '"' << text << "\" lacks \"" << part << '"';
}

}  // namespace trivet
