// GptDataset: training samples of s + 1 tokens as in Megatron's GPTDataset, as a function of (seed, sample index).
//
// The documents of a split are shuffled and laid end to end; the next epoch's documents, shuffled anew, follow, and so
// on without end. Window w of this stream is its tokens [w s, w s + s]: consecutive windows share one token, the last
// label of one being the first input of the next, so that every token of every epoch is a label exactly once (the
// stream's first excepted). Within an epoch the order of the windows is shuffled too. Three tables make an epoch, with
// Megatron's names: document index (order of documents), sample index (document and offset where each window starts),
// shuffle index (order of windows).
//
// Unlike Megatron, which shuffles all epochs of a run together, sample i does not depend on how long the run is: a run
// that is extended or resumed sees the data of one that was longer from the start. And no token of an epoch is left
// over: a window may end in the next epoch.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/data/indexed_dataset.h"

namespace trivet {

struct DocumentRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const DocumentRange&) const = default;
};

// Train, validation and test documents by shares such as {98, 2, 0} (missing ones are 0): contiguous ranges whose ends
// are rounded as Megatron does. REQUIRES: at most three, none below 0, a finite sum above 0.
std::array<DocumentRange, 3> split_documents(std::span<const double> shares, int64_t documents);

// Safe to call from many threads at once. Memory: for each of the at most three epochs in use 4 bytes a document and
// 12 bytes a window; an epoch's tables are built when its first sample is asked for.
class GptDataset {
 public:
  struct Options {
    std::string name;  // "train", "valid": for messages
    int64_t seq_length = 0;
    int64_t vocab_size = 0;  // of the model, before padding
    int64_t seed = 0;
  };

  // A "document" here is a sequence of the .idx. Empty ones are passed over. Fewer tokens than one sample has is a
  // DataError.
  GptDataset(std::shared_ptr<const IndexedDataset> dataset, DocumentRange documents, Options options);

  // tokens: [s + 1]. Any index from 0 on; a token id outside the vocabulary is a DataError naming it and the sample.
  void sample(int64_t index, std::span<int32_t> tokens) const;

  int64_t seq_length() const { return options_.seq_length; }
  int64_t tokens_per_epoch() const { return tokens_per_epoch_; }
  // Window starts of an epoch; the number of samples that begin in it.
  int64_t first_sample(int64_t epoch) const;
  int64_t samples_in_epoch(int64_t epoch) const { return first_sample(epoch + 1) - first_sample(epoch); }
  const std::string& name() const { return options_.name; }

 private:
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
