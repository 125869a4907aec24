// The datasets that the configuration's `data` keys name.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "engine/config/config.h"
#include "engine/data/gpt_dataset.h"

namespace trivet {

struct Vocabulary {
  int64_t size = 0;
  std::string fingerprint;  // Tokenizer::fingerprint()
  std::string source;       // the file
};

// The vocabulary of data.tokenizer_model, of PREFIX.json, or of tokenizer_file(). Empty without any of them: then
// model.vocab_size gives the size. Two that differ, also between training and validation data, are a DataError with
// both sizes and fingerprints. Errors of a file begin with the key that names it.
std::optional<Vocabulary> data_vocabulary(const DataConfig& config);

// A prefix that names no file is a ConfigError, half a dataset a DataError.
void expect_dataset(const std::string& prefix);

struct TrainingData {
  std::unique_ptr<GptDataset> train;
  std::unique_ptr<GptDataset> valid;  // null without validation
  // By key: tokens, sequences, and a hash of samples of PREFIX.idx and PREFIX.bin.
  std::map<std::string, std::string> identities;
};

// Opens data.path with data.split, or data.train_path and data.valid_path. REQUIRES: a resolved config. A split that
// leaves no document for validation, or a dataset that does not exist, is a ConfigError. Errors of a dataset begin with
// its key. Validation data are in order with train.full_validation.
TrainingData open_training_data(const Config& config);

}  // namespace trivet
