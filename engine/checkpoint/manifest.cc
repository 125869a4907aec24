#include "engine/checkpoint/manifest.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tuple>
#include <xxhash.h>

#include "base/content_hash.h"
#include "base/json.h"

namespace trivet {
namespace {

using nlohmann::json;

constexpr int64_t kLargestDim = int64_t{1} << 40, kMostElements = int64_t{1} << 60;  // byte counts fit in int64_t

json to_value(const CheckpointFile& file) {
  json slices = json::array();
  for (const StoredSlice& stored : file.slices) {
    std::string hashes;
    for (const uint64_t hash : stored.block_hashes) hashes += fmt::format("{:016x}", hash);
    json value = to_value(stored.slice);
    value.update({{"tensor", stored.name}, {"offset", stored.offset}, {"xxh3_64", hashes}});
    slices.push_back(std::move(value));
  }
  json out = {{"file", file.name}, {"bytes", file.bytes}, {"xxh3_128", file.hash}};
  if (!file.slices.empty()) out["pieces"] = slices;
  return out;
}

Slice parse_slice(const JsonReader& reader) {
  Slice slice;
  const auto shape = reader.integers("global_shape", 1, 2, kLargestDim);
  slice.global = shape.size() == 1 ? Shape{shape[0]} : Shape{shape[0], shape[1]};
  int64_t numel;
  if (__builtin_mul_overflow(slice.global_rows(), slice.global_cols(), &numel) || numel > kMostElements)
    reader.refuse("global_shape", to_string(slice.global), "fewer elements");
  const auto box = reader.integers("box", 4, 4, kLargestDim);
  slice.row = box[0], slice.rows = box[1], slice.col = box[2], slice.cols = box[3];
  if (slice.rows < 1 || slice.cols < 1 || slice.row + slice.rows > slice.global_rows() ||
      slice.col + slice.cols > slice.global_cols())
    reader.refuse("box", fmt::format("rows {}+{}, columns {}+{}", box[0], box[1], box[2], box[3]),
                  "a part of " + to_string(slice.global));
  const auto range = reader.integers("range", 2, 2, numel);
  slice.first = range[0], slice.count = range[1];
  if (slice.count < 1 || slice.first + slice.count > slice.rows * slice.cols)
    reader.refuse("range", fmt::format("{}+{}", range[0], range[1]),
                  fmt::format("a part of the {} elements of the box", slice.rows * slice.cols));
  return slice;
}

std::vector<uint64_t> parse_hashes(const JsonReader& reader, int64_t bytes) {
  const std::string text = reader.text("xxh3_64");
  const auto blocks = static_cast<size_t>((bytes + Manifest::kBlockBytes - 1) / Manifest::kBlockBytes);
  const bool hex = text.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!hex || text.size() != 16 * blocks)
    reader.refuse("xxh3_64", fmt::format("{} characters", text.size()),
                  fmt::format("{} hexadecimal digits for each of {} blocks", 16, blocks));
  std::vector<uint64_t> hashes;
  for (size_t i = 0; i < blocks; ++i) hashes.push_back(std::stoull(text.substr(16 * i, 16), nullptr, 16));
  return hashes;
}

CheckpointFile parse_file(const json& value, const std::string& source) {
  const JsonReader reader(value, source);
  CheckpointFile file{.name = reader.text("file"), .bytes = reader.integer("bytes"), .hash = reader.text("xxh3_128")};
  if (file.name.empty() || file.name[0] == '.' || file.name.find('/') != std::string::npos ||
      file.name.find('\0') != std::string::npos)
    reader.refuse("file", "'" + file.name.substr(0, 200) + "'", "the name of a file in the checkpoint's directory");
  if (!value.contains("pieces")) return file;
  for (const json& entry : reader.array("pieces")) {
    const JsonReader slice_reader(entry, fmt::format("{}: {}", source, file.name));
    StoredSlice stored{.name = slice_reader.text("tensor"), .slice = parse_slice(slice_reader)};
    stored.offset = slice_reader.integer("offset");
    if (stored.offset > file.bytes || stored.bytes() > file.bytes - stored.offset)
      slice_reader.refuse("offset", fmt::format("{} bytes at {}", stored.bytes(), stored.offset),
                          fmt::format("a range within the file's {} bytes", file.bytes));
    stored.block_hashes = parse_hashes(slice_reader, stored.bytes());
    file.slices.push_back(std::move(stored));
  }
  return file;
}

auto box_of(const Slice& s) { return std::tuple(s.row, s.rows, s.col, s.cols); }

bool boxes_overlap(const Slice& a, const Slice& b) {
  return a.row < b.row + b.rows && b.row < a.row + a.rows && a.col < b.col + b.cols && b.col < a.col + a.cols;
}

// Checks that the slices make up one tensor: boxes are equal or disjoint, and the ranges within a box are disjoint.
void check_tensor(std::string_view name, const std::vector<StoredPlace>& places, const std::string& source) {
  std::vector<const Slice*> slices;
  for (const StoredPlace& place : places) slices.push_back(&place.slice->slice);
  std::sort(slices.begin(), slices.end(), [](const Slice* a, const Slice* b) {
    return std::pair(box_of(*a), a->first) < std::pair(box_of(*b), b->first);
  });
  const Shape& shape = slices[0]->global;
  std::vector<const Slice*> boxes;
  int64_t elements = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    const Slice& slice = *slices[i];
    if (slice.global != shape)
      throw DataError(fmt::format("{}: tensor {} has the shapes {} and {}", source, name, to_string(shape),
                                  to_string(slice.global)));
    bool overlaps = false;
    if (i > 0 && box_of(slice) == box_of(*slices[i - 1])) {
      overlaps = slice.first < slices[i - 1]->first + slices[i - 1]->count;
    } else {
      overlaps = std::any_of(boxes.begin(), boxes.end(), [&](const Slice* box) { return boxes_overlap(slice, *box); });
      boxes.push_back(&slice);
    }
    if (overlaps) throw DataError(fmt::format("{}: tensor {}: two of its slices overlap", source, name));
    elements += slice.count;  // cannot overflow: the slices are disjoint
  }
  if (elements != shape.numel())
    throw DataError(fmt::format("{}: tensor {}: its slices hold {} elements, expected {}: {}", source, name, elements,
                                shape.numel(), to_string(shape)));
}

constexpr const char* kSelfHash = "xxh3_128";

// Replaces invalid UTF-8, in a path for example, with U+FFFD, so that no save fails because of it.
std::string text_of(const json& value, int indent = -1) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::map<std::string_view, std::vector<StoredPlace>> tensors_of(const Manifest& manifest) {
  std::map<std::string_view, std::vector<StoredPlace>> tensors;
  for (const CheckpointFile& file : manifest.files)
    for (const StoredSlice& slice : file.slices) tensors[slice.name].push_back({&file, &slice});
  return tensors;
}

json to_value(const Slice& slice) {
  const std::vector<int64_t> shape(slice.global.dims.begin(), slice.global.dims.begin() + slice.global.rank);
  return {{"global_shape", shape},
          {"box", {slice.row, slice.rows, slice.col, slice.cols}},
          {"range", {slice.first, slice.count}}};
}

uint64_t hash_block(std::span<const char> block) { return XXH3_64bits(block.data(), block.size()); }

std::string to_json(const CheckpointFile& file) { return text_of(to_value(file)) + "\n"; }

CheckpointFile parse_checkpoint_file(const std::string& text, const std::string& source) {
  return parse_file(parse_strict_json(text, source), source);
}

std::string to_json(const Manifest& manifest) {
  json out = {{"format", "trivet checkpoint"}, {"version", {Manifest::kMajor, Manifest::kMinor}},
              {"step", manifest.step},         {"run", manifest.run},
              {"layout", manifest.layout},     {"block_bytes", Manifest::kBlockBytes},
              {"files", json::array()}};
  for (const CheckpointFile& file : manifest.files) out["files"].push_back(to_value(file));
  out[kSelfHash] = content_hash(text_of(out));  // keys are sorted, so equal content gives equal text
  return text_of(out) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& source) {
  json whole = parse_strict_json(text, source);
  const JsonReader reader(whole, source);
  if (const std::string format = reader.text("format"); format != "trivet checkpoint")
    reader.refuse("format", "'" + format.substr(0, 60) + "'", "'trivet checkpoint'");
  const auto version = reader.integers("version", 2, 2, 1'000'000);
  if (version[0] != Manifest::kMajor)
    reader.refuse("version", fmt::format("{}.{}", version[0], version[1]),
                  fmt::format("{}.x, which this Trivet reads", Manifest::kMajor));
  const std::string hash = reader.text(kSelfHash);
  json content = whole;
  content.erase(kSelfHash);
  if (const std::string found = content_hash(content.dump()); found != hash)
    throw DataError(fmt::format("{}: found the hash {}, expected {}: the file was modified", source, found, hash));
  Manifest manifest{.step = reader.integer("step"), .run = reader.text("run"), .layout = reader.text("layout")};
  reader.integer("block_bytes", Manifest::kBlockBytes, Manifest::kBlockBytes);
  for (const json& file : reader.array("files")) manifest.files.push_back(parse_file(file, source));
  for (const auto& [name, places] : tensors_of(manifest)) check_tensor(name, places, source);
  return manifest;
}

std::string to_json(const TrainState& state) {
  json out = {{"step", state.step},
              {"consumed_samples", state.consumed_samples},
              {"consumed_tokens", state.consumed_tokens},
              {"skipped_steps", state.skipped_steps},
              {"config", state.config},
              {"tokenizer", state.tokenizer},
              {"data", state.data},
              {"evaluation_due", state.evaluation_due}};
  if (state.validation_loss) out["validation_loss"] = *state.validation_loss;
  return text_of(out, 1) + "\n";
}

TrainState parse_train_state(const std::string& text, const std::string& source) {
  const json whole = parse_strict_json(text, source);
  const JsonReader reader(whole, source);
  TrainState state{.step = reader.integer("step"),
                   .consumed_samples = reader.integer("consumed_samples"),
                   .consumed_tokens = reader.integer("consumed_tokens"),
                   .skipped_steps = reader.integer("skipped_steps"),
                   .config = reader.texts("config"),
                   .tokenizer = reader.text("tokenizer")};
  if (reader.has("data")) state.data = reader.texts("data");  // older checkpoints have neither
  if (reader.has("evaluation_due")) state.evaluation_due = reader.flag("evaluation_due");
  if (reader.has("validation_loss")) state.validation_loss = reader.number("validation_loss");
  return state;
}

}  // namespace trivet
