// PREFIX.json: facts about a dataset that its .idx lacks. `trivet data prepare` writes it last. Megatron's datasets
// come without this file; the configuration then gives the vocabulary size.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/data/indexed_dataset.h"

namespace trivet {

struct DatasetInfo {
  std::string tokenizer;    // Tokenizer::kind()
  std::string fingerprint;  // Tokenizer::fingerprint()
  int64_t vocab_size = 0;
  int64_t eod = 0;
  int64_t documents = 0;
  int64_t tokens = 0;      // including one end-of-document token per document
  int64_t text_bytes = 0;  // of the documents
  std::string bin_hash;    // content_hash() of PREFIX.bin
  int64_t bos = -1;        // begins every document; -1: none does
  // content_hash() of the BPE file next to PREFIX.json, as computing its fingerprint takes a second; "": unknown.
  std::string tokenizer_hash{};
  bool operator==(const DatasetInfo&) const = default;
};

std::string to_json(const DatasetInfo& info);

// Empty if there is no PREFIX.json. Throws DataError naming the key if the file is invalid.
std::optional<DatasetInfo> read_dataset_info(const std::string& prefix);

// Throws DataError if PREFIX.json and PREFIX.idx differ in the number of documents or tokens, or if the tokenizer's
// file exists but is not the tokenizer that made the dataset.
void check_written_together(const DatasetInfo& info, const IndexedDataset& dataset);

// Reads all of PREFIX.bin; throws DataError if any byte differs from those written.
void check_bin_hash(const DatasetInfo& info, const IndexedDataset& dataset);

}  // namespace trivet
