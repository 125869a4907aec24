// The datasets that the configuration's `data` keys name.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "engine/config/config.h"
#include "engine/data/batch_source.h"

namespace trivet {

struct Vocabulary {
  int64_t size = 0;
  std::string fingerprint;  // Tokenizer::fingerprint()
  std::string source;       // the file that it was read from
  int64_t eod = -1;         // the token that ends a document; -1: unknown
};

// The vocabulary of data.tokenizer_model, PREFIX.json or tokenizer_file(). Empty if none exists: model.vocab_size then
// gives the size. If two differ, even between training and validation data, throws DataError with both sizes and
// fingerprints. Errors in a file begin with the key that names it.
std::optional<Vocabulary> data_vocabulary(const DataConfig& config);

// Throws ConfigError if neither file of the dataset exists, DataError if only one does.
void expect_dataset(const std::string& prefix);

DocumentRules document_rules(const DataConfig& config, int64_t eod);

struct TrainingData {
  std::unique_ptr<Samples> train;  // null with train.skip_train
  std::unique_ptr<Samples> valid;  // null without validation
  std::unique_ptr<Samples> test;   // null without a test at the end
  // By key: for each source of a blend, tokens, sequences, and a hash of samples of PREFIX.idx and PREFIX.bin.
  std::map<std::string, std::string> identities;
  // For each source: "dataset data.path PREFIX"; counts, and hashes of lengths, samples of tokens, and PREFIX.json.
  std::vector<std::pair<std::string, std::string>> fingerprints{};
  Vocabulary tokenizer;  // empty: unknown
  DocumentRules documents{};
  TextBlock sources;  // of the training data: tokens, share of the samples, epochs of the run
};

// Opens data.path with data.split, or data.train_path, data.valid_path and data.test_path, for a run of `samples`
// training samples. REQUIRES: a resolved config. Throws ConfigError if a share of the split gets no document, a dataset
// does not exist, or the data ends before the run. Errors in a dataset begin with its key. With train.full_validation
// or eval_samples, validation and test data are read in order, once.
TrainingData open_training_data(const Config& config, double samples);

}  // namespace trivet
