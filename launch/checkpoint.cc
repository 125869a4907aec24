// trivet checkpoint inspect, verify: the contents of a checkpoint, and whether it is valid.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/host.h"
#include "base/text.h"
#include "engine/checkpoint/open_checkpoint.h"
#include "engine/checkpoint/shard.h"
#include "engine/checkpoint/store.h"
#include "engine/config/load.h"
#include "engine/train/inference.h"
#include "launch/commands.h"
#include "launch/redrawn_line.h"

namespace trivet {
namespace {

// ---- inspect

using StoredTensors = std::map<std::string_view, std::vector<StoredPlace>>;

const Shape& shape_of(const std::vector<StoredPlace>& places) { return places[0].slice->slice.global; }
int64_t bytes_of(const std::vector<StoredPlace>& places) { return 4 * shape_of(places).numel(); }

// The tensors' names in natural order: embedding, layer 2 before layer 10, the head.
std::vector<std::string> in_natural_order(const StoredTensors& tensors, std::string_view prefix) {
  std::vector<std::string> names;
  for (const auto& [name, places] : tensors)
    if (name.starts_with(prefix) && (!prefix.empty() || !name.starts_with("optimizer."))) names.emplace_back(name);
  const auto part = [&](const std::string& whole) {
    const std::string_view name = std::string_view(whole).substr(prefix.size());
    return name.starts_with("embedding.") ? 0 : name.starts_with("decoder.layers.") ? 1 : 2;
  };
  std::ranges::sort(names, [&](const std::string& a, const std::string& b) {
    return part(a) != part(b) ? part(a) < part(b) : strverscmp(a.c_str(), b.c_str()) < 0;
  });
  return names;
}

struct Statistics {
  double least = std::numeric_limits<double>::infinity(), most = -least, mean = 0, deviation = 0;
  int64_t zeros = 0, non_finite = 0;
};

// Statistics over the finite values.
Statistics statistics_of(const std::vector<float>& values) {
  Statistics s;
  double sum = 0, squares = 0;
  for (const float value : values) {
    if (!std::isfinite(value)) {
      ++s.non_finite;
      continue;
    }
    s.least = std::min<double>(s.least, value);
    s.most = std::max<double>(s.most, value);
    s.zeros += value == 0;
    sum += value;
  }
  const auto n = static_cast<double>(static_cast<int64_t>(values.size()) - s.non_finite);
  s.mean = sum / n;
  for (const float value : values)
    if (std::isfinite(value)) squares += (value - s.mean) * (value - s.mean);
  s.deviation = std::sqrt(squares / n);
  return s;
}

// Verifies the whole checkpoint against its hashes; throws if a byte differs.
void verify(const OpenCheckpoint& checkpoint) {
  const double start = now_seconds();
  int64_t bytes = 0;
  for (const CheckpointFile& file : checkpoint.manifest.files) bytes += file.bytes;
  RedrawnLine line;
  verify_checkpoint(checkpoint, [&](int64_t done) {
    if (line.due())
      line.draw(fmt::format("{} {}", checkpoint.directory,
                            progress_bar(static_cast<double>(done) / static_cast<double>(bytes))));
  });
  line.clear();
  const double seconds = now_seconds() - start;
  print_text(fmt::format("{}: sound: step {}, {}, {}, {} read and hashed in {:.2f} s, {:.2f} GB/s",
                         checkpoint.directory, grouped(checkpoint.state.step),
                         counted(std::ssize(checkpoint.manifest.files), "file"),
                         counted(std::ssize(tensors_of(checkpoint.manifest)), "tensor"), bytes_text(bytes), seconds,
                         static_cast<double>(bytes) / std::max(seconds, 1e-9) / 1e9));
}

class Inspector {
 public:
  explicit Inspector(const std::string& directory)
      : checkpoint_(open_checkpoint(directory)), tensors_(tensors_of(checkpoint_.manifest)) {}

  // tables: also prints all tensors with statistics. Checks the hashes last, because large checkpoints take a while.
  void print(bool tables) {
    print_run();
    struct Group {
      const char* title;
      std::string_view prefix;
    };
    for (const Group& group :
         {Group{"weights", ""}, Group{"first moments", kFirstMoment}, Group{"second moments", kSecondMoment}}) {
      const std::vector<std::string> names = in_natural_order(tensors_, group.prefix);
      if (names.empty()) continue;
      if (tables) print_tensors(group.title, names, group.prefix);
      print_sum(group.title, names);
    }
    if (tables)
      fmt::print("\nnon-finite values: {}\n", non_finite_ == 0 ? "none" : grouped(non_finite_) + ", marked ! above");
    flush_output();
    verify(checkpoint_);
  }

 private:
  void print_run() const {
    const Manifest& manifest = checkpoint_.manifest;
    const TrainState& state = checkpoint_.state;
    const Config config = parse_saved_config(state.config, checkpoint_.directory + "/train_state.json");
    const ModelConfig& m = config.model;
    int64_t bytes = 0, shards = 0;
    for (const CheckpointFile& file : manifest.files) bytes += file.bytes, shards += !file.slices.empty();
    const auto number = [](const std::optional<int64_t>& value) { return value ? grouped(*value) : "?"; };
    TextBlock block{
        .title = "",
        .rows = {
            {"checkpoint", checkpoint_.directory},
            {"step", fmt::format("{}, after {}, {}", grouped(state.step), counted(state.consumed_samples, "sample"),
                                 counted(state.consumed_tokens, "token"))},
            {"saved by", fmt::format("{} (run {})", manifest.layout, manifest.run)},
            {"files", fmt::format("{} and metadata, {}", counted(shards, "shard"), bytes_text(bytes))},
            {"model", fmt::format("{}, hidden {}, ffn {}, {}, {}", counted(m.num_layers, "layer"),
                                  grouped(m.hidden_size), number(m.ffn_hidden_size),
                                  counted(m.num_attention_heads, "head"), counted(m.seq_length, "position"))},
            {"vocabulary", fmt::format("{}, {} output weights", number(m.vocab_size),
                                       m.untie_embeddings_and_output_weights ? "untied" : "tied")},
            {"computed in", std::string(word_of(config.precision.dtype)) + "; stored in fp32"},
            {"tokenizer", state.tokenizer.empty() ? "unknown" : state.tokenizer}}};
    if (!config.data.path.empty()) block.rows.push_back({"data", config.data.path});
    if (!config.data.train_path.empty()) block.rows.push_back({"data", config.data.train_path});
    print_blocks({block});
  }

  void print_tensors(const char* title, const std::vector<std::string>& names, std::string_view prefix) {
    fmt::print("\n");
    TextBlock table{.title = "", .align = "lrlrrrrrrrr"};
    table.rows.push_back(
        {title, "shape", "dtype", "slices", "bytes", "min", "max", "mean", "std", "zeros", "non-finite"});
    for (const std::string& name : names) {
      const std::vector<StoredPlace>& places = tensors_.at(name);
      std::vector<std::string>& row = table.rows.emplace_back();
      row = {name.substr(prefix.size()), to_string(shape_of(places)), "F32", std::to_string(places.size()),
             grouped(bytes_of(places))};
      const Statistics s = statistics_of(read_tensor(checkpoint_, name, shape_of(places), Weights::any));
      for (const double value : {s.least, s.most, s.mean, s.deviation}) row.push_back(fmt::format("{:.4g}", value));
      row.push_back(grouped(s.zeros));
      row.push_back(s.non_finite == 0 ? "0" : "! " + grouped(s.non_finite));
      non_finite_ += s.non_finite;
    }
    print_blocks({table});
  }

  void print_sum(const char* title, const std::vector<std::string>& names) const {
    int64_t elements = 0, bytes = 0;
    for (const std::string& name : names) {
      elements += shape_of(tensors_.at(name)).numel();
      bytes += bytes_of(tensors_.at(name));
    }
    fmt::print("{}: {} tensors, {} elements, {}\n", title, names.size(), grouped(elements), bytes_text(bytes));
  }

  const OpenCheckpoint checkpoint_;
  const StoredTensors tensors_;
  int64_t non_finite_ = 0;
};

void add_checkpoint_inspect(CLI::App& parent) {
  struct Options {
    std::string path;
    bool tensors = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = parent.add_subcommand("inspect", "show what a checkpoint holds and whether it is sound");
  add_argument(*command, "PATH", options->path, "a checkpoint, or the latest one of a folder or run");
  command->add_flag("--tensors", options->tensors,
                    "list all tensors: shape, range, mean, standard deviation, zeros and non-finite values");
  command->footer("exit codes: 0 sound; 65 damaged: file, tensor, what was found and expected; 74 cannot be read");
  command->callback([options] {
    read_latest(options->path, [&](const std::string& directory) { Inspector(directory).print(options->tensors); });
  });
}

// ---- verify

void verify_all(const std::string& path) {
  const std::vector<std::string> directories = find_checkpoints(path);
  if (directories.size() == 1)
    return read_latest(path, [](const std::string& directory) { verify(open_checkpoint(directory)); }, {});
  size_t damaged = 0;
  for (const std::string& directory : directories) {
    try {
      verify(open_checkpoint(directory));
    } catch (const Error& error) {
      if (!file_exists(directory)) {
        fmt::print("{}: was removed meanwhile: the run keeps only its latest ones\n", directory);
      } else if (dynamic_cast<const DataError*>(&error)) {
        ++damaged;
        fmt::print("{}: DAMAGED: {}\n", directory, error.what());
      } else {
        throw;
      }
    }
    flush_output();
  }
  if (damaged > 0)
    throw DataError(fmt::format("{} of {} damaged", damaged, counted(std::ssize(directories), "checkpoint")));
}

void add_verify(CLI::App& parent) {
  auto path = std::make_shared<std::string>();
  CLI::App* command = parent.add_subcommand("verify", "read all of a checkpoint and compare it with its hashes");
  add_argument(*command, "PATH", *path, "a checkpoint, or a folder of them or a run: then all of them");
  command->footer("exit codes: 0 sound; 65 damaged: file, tensor, what was found and expected; 74 cannot be read");
  command->callback([path] { verify_all(*path); });
}

}  // namespace

CLI::App& add_checkpoint_command(CLI::App& app) {
  CLI::App* checkpoint = app.add_subcommand("checkpoint", "inspect and verify checkpoints");
  checkpoint->require_subcommand(1);
  add_checkpoint_inspect(*checkpoint);
  add_verify(*checkpoint);
  return *checkpoint;
}

}  // namespace trivet
