// The datasets that a run trains and evaluates on, opened as its config says.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/config/config.h"
#include "engine/data/gpt_dataset.h"
#include "engine/data/tokenizer.h"

namespace trivet {

struct Datasets {
  std::unique_ptr<GptDataset> train;
  std::unique_ptr<GptDataset> valid;  // null: none asked for
  std::shared_ptr<const IndexedDataset> valid_source;
  DocumentRange valid_documents;
};

// The prefix of the dataset that the run trains on.
const std::string& train_prefix(const Config& config);
// The vocabulary size that the dataset's description gives, if it has one.
std::optional<int64_t> dataset_vocab_size(const Config& config);
// REQUIRES: a resolved config. Throws DataError and IoError.
Datasets open_datasets(const Config& config);

}  // namespace trivet
