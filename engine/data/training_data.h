// From the configuration's `data` keys to the datasets that a run reads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/config/config.h"
#include "engine/data/gpt_dataset.h"

namespace trivet {

struct Vocabulary {
  int64_t size = 0;
  std::string fingerprint;  // Tokenizer::fingerprint()
  std::string source;       // the file that says so
};

// The vocabulary of the data's tokenizer: that of data.tokenizer_model, of PREFIX.json, or of PREFIX.model. Empty where
// there is none of them: then model.vocab_size has to say it. Two that differ, among them those of training and
// validation data, are a DataError with both sizes and fingerprints.
std::optional<Vocabulary> data_vocabulary(const DataConfig& config);

struct TrainingData {
  std::unique_ptr<GptDataset> train;
  std::unique_ptr<GptDataset> valid;  // null where it was not asked for
};

// Opens what data.path and data.split, or data.train_path and data.valid_path, name. REQUIRES: they keep the rules of
// values, and vocab_size those of ranks (engine/config/rules.h). A split that leaves no whole document for validation
// data that are asked for is a ConfigError.
TrainingData open_training_data(const DataConfig& config, int64_t seq_length, int64_t vocab_size, bool with_validation);

}  // namespace trivet
