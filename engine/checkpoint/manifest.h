// A committed checkpoint, as its manifest.json describes it. A checkpoint is a directory:
//
//   step-00001000/
//     rank-00000.safetensors …   each rank's slices, fp32. A slice that is a whole box (slice.h) has the box's shape,
//                                all others are flat; "slices" in __metadata__ lists the elements of each, so that a
//                                shard can be read without the manifest.
//     train_state.json           training progress: step, samples, tokens, …
//     config.resolved.yaml       its configuration
//     manifest.json              written last: format version, run, size and hash of every file above; for every slice
//                                its elements, its file offset and the XXH3-64 of each MiB, computed in memory before
//                                the write
//
// The manifest holds a hash of itself, so every loaded byte is verified although a rank reads only part of the files; a
// shard's header must match the one derived from its slices. File hashes are XXH3-128, as xxh128sum prints them. A
// reader accepts every minor version of its major version, and ignores unknown members.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/slice.h"

namespace trivet {

// The training state other than tensors. Dropout, initial weights and the order of the data are functions of the seeds
// and of sample numbers; the learning rate is a function of the step.
struct TrainState {
  int64_t step = 0;              // optimizer steps done or skipped
  int64_t consumed_samples = 0;  // index of the next sample
  int64_t consumed_tokens = 0;
  int64_t skipped_steps = 0;                    // included in `step`; Adam's bias correction does not count them
  std::map<std::string, std::string> config{};  // of the run that saved this state: "section.key" -> value as YAML
  std::string tokenizer{};                      // fingerprint; empty: unknown
  std::map<std::string, std::string> data{};    // "data.path" -> identity of the dataset: TrainingData::identities
  bool evaluation_due = false;                  // the step's evaluation was interrupted; a resumed run begins with it
  std::optional<double> validation_loss{};      // at this step, if it was evaluated
};

struct StoredSlice {
  std::string name;  // as in StateTensor
  Slice slice;
  int64_t offset = 0;                    // in the file, in bytes
  std::vector<uint64_t> block_hashes{};  // one per kBlockBytes; the last block may be shorter
  int64_t bytes() const { return slice.count * 4; }
};

struct CheckpointFile {
  std::string name;  // within the directory
  int64_t bytes = 0;
  std::string hash{};
  std::vector<StoredSlice> slices{};  // shards only
};

struct Manifest {
  static constexpr int64_t kBlockBytes = 1 << 20;
  static constexpr int64_t kMajor = 1, kMinor = 0;
  static constexpr int64_t kMostBytes = int64_t{1} << 30;  // size limit of manifest.json, and of a rank's part of it

  int64_t step = 0;
  std::string run;     // random, new at each program start: shards of two runs cannot be mixed
  std::string layout;  // of the run that saved the checkpoint; informational
  std::vector<CheckpointFile> files{};
};

// Where each tensor's slices are stored, by tensor name. The pointers are valid as long as the manifest exists.
struct StoredPlace {
  const CheckpointFile* file;
  const StoredSlice* slice;
};
std::map<std::string_view, std::vector<StoredPlace>> tensors_of(const Manifest& manifest);

nlohmann::json to_value(const Slice& slice);
uint64_t hash_block(std::span<const char> block);

std::string to_json(const CheckpointFile& file);
CheckpointFile parse_checkpoint_file(const std::string& text, const std::string& source);
std::string to_json(const Manifest& manifest);
// Throws DataError unless the manifest is valid: every tensor's slices cover it without overlaps, in files that are
// large enough, and no file name points outside the directory.
Manifest parse_manifest(const std::string& text, const std::string& source);

std::string to_json(const TrainState& state);
TrainState parse_train_state(const std::string& text, const std::string& source);

}  // namespace trivet
