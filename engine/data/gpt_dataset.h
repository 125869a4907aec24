// GptDataset: training samples of s + 1 tokens as in Megatron's GPTDataset, as a function of (seed, sample index).
//
// The shuffled documents of a split are concatenated; the next epoch, reshuffled, follows, and so on. Window w of this
// stream is its tokens [w s, w s + s]: the last label of a window is the first input of the next, so that every token
// but the first is a label exactly once per epoch. The windows of an epoch are shuffled too. An epoch consists of three
// tables, named as in Megatron: document index (order of documents), sample index (document and offset where each
// window starts), shuffle index (order of windows).
//
// Unlike Megatron, which shuffles all epochs of a run together, sample i does not depend on the length of the run: an
// extended or resumed run sees the same data as a run that was longer from the start. No token of an epoch is dropped:
// a window may extend into the next epoch.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/data/batch_source.h"
#include "engine/data/indexed_dataset.h"

namespace trivet {

struct DocumentRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const DocumentRange&) const = default;
};

// Splits documents into training, validation and test by shares such as {98, 2, 0} (missing ones are 0): contiguous
// ranges, ends rounded as in Megatron. REQUIRES: at most three shares, none negative, with a finite positive sum.
std::array<DocumentRange, 3> split_documents(std::span<const double> shares, int64_t documents);

// Thread-safe. Memory: 4 bytes per document and 12 bytes per window for each of at most three epochs. An epoch's tables
// are built at its first access.
class GptDataset : public Samples {
 public:
  struct Options {
    std::string name;  // "train", "valid": for messages
    int64_t seq_length = 0;
    int64_t vocab_size = 0;  // of the model, before padding
    int64_t seed = 0;
    bool in_order = false;  // documents and windows are not shuffled
    bool once = false;      // a single epoch: if in order, up to its last label; if shuffled, whole windows
  };

  // A "document" here is a sequence of the .idx; empty ones are skipped. Throws DataError if there is no full sample.
  GptDataset(std::shared_ptr<const IndexedDataset> dataset, DocumentRange documents, Options options);

  int64_t seq_length() const override { return options_.seq_length; }
  int64_t tokens_per_epoch() const { return tokens_per_epoch_; }
  int64_t first_sample(int64_t epoch) const;  // the first window that starts in this epoch
  int64_t samples() const override {
    return (labels() + (options_.in_order ? options_.seq_length - 1 : 0)) / options_.seq_length;
  }
  int64_t labels() const { return tokens_per_epoch_ - 1; }  // of an epoch
  int64_t labels_of(int64_t samples) const override { return std::min(samples * options_.seq_length, labels()); }

 private:
  // Throws DataError, naming the id and the sample, for a token id outside the vocabulary.
  void read_sample(int64_t index, std::span<int32_t> tokens, std::vector<int32_t>* ends) const override;

  struct Start {
    uint32_t position;  // in document_index
    uint32_t offset;    // in that document
  };
  struct Epoch {
    int64_t number;
    std::vector<uint32_t> document_index;
    std::vector<Start> sample_index;
    std::vector<uint32_t> shuffle_index;
  };

  std::shared_ptr<const Epoch> epoch(int64_t number) const;
  std::shared_ptr<const Epoch> build_epoch(int64_t number) const;

  std::shared_ptr<const IndexedDataset> dataset_;
  DocumentRange documents_;
  Options options_;
  int64_t tokens_per_epoch_ = 0;

  mutable std::mutex mutex_;
  mutable std::deque<std::shared_ptr<const Epoch>> epochs_;  // most recently used first; guarded by mutex_
};

}  // namespace trivet
