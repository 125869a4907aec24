// trivet checkpoint convert: converts the weights of a checkpoint, Hugging Face model or llm.c file to another format.
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/host.h"
#include "base/text.h"
#include "base/utf8.h"
#include "engine/checkpoint/open_checkpoint.h"
#include "engine/checkpoint/store.h"
#include "engine/data/tokenizer.h"
#include "engine/train/inference.h"
#include "launch/commands.h"
#include "tools/convert/gpt_weights.h"
#include "tools/study/child_process.h"

namespace trivet {
namespace {

struct Conversion {
  std::string source, destination, to, dtype, tokenizer;
  std::optional<int64_t> max_shard_size{};  // bytes
};

// The tokenizer next to a Hugging Face model: a BPE model, or, if Trivet cannot read it (Llama 2's uses byte fallback),
// the SentencePiece model that it was converted from. "": none, or none that Trivet can read (`missing` then says why).
std::string tokenizer_beside(const GptWeights& weights, std::string& missing) {
  namespace fs = std::filesystem;
  const fs::path source = fs::absolute(weights.path());
  if (!is_hf_model(weights.path())) return "";
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    const std::string path = (fs::is_directory(source) ? source : source.parent_path()) / name;
    if (!file_exists(path)) continue;
    try {
      check_tokenizer(*load_tokenizer(path), "", *weights.config().model.vocab_size, path);
      missing.clear();
      return path;
    } catch (const Error& error) {
      missing = fmt::format("the tokenizer ({})", error.what());
    }
  }
  return "";
}

// Export options. The tokenizer is the given one, else the run's, else the one next to the source; unset if
// transformers cannot read it (`missing` says why).
HfExport export_of(const Conversion& options, const GptWeights& weights, std::string& missing) {
  HfExport out{.dtype = options.dtype == "bf16" ? DType::bf16 : DType::f32};
  out.max_shard_bytes = options.max_shard_size.value_or(out.max_shard_bytes);
  const OpenCheckpoint* checkpoint = weights.checkpoint();
  std::string path = options.tokenizer;
  if (path.empty() && checkpoint) path = tokenizer_of(*checkpoint);
  if (path.empty() && !checkpoint) path = tokenizer_beside(weights, missing);
  if (path.empty() && missing.empty()) missing = "the tokenizer, which is unknown here (--tokenizer names it)";
  else if (!path.empty() && !path.ends_with("tokenizer.json"))
    missing = fmt::format("the tokenizer, {}, as it has no tokenizer.json", path);
  if (!missing.empty()) {
    if (!options.tokenizer.empty()) throw ConfigError("--tokenizer " + path + ": expected a tokenizer.json");
    return out;
  }
  const auto tokenizer = load_tokenizer(path);
  check_tokenizer(*tokenizer, checkpoint ? checkpoint->state.tokenizer : "", *weights.config().model.vocab_size, path);
  out.tokenizer = path;
  out.bos = tokenizer->bos();
  out.eos = tokenizer->eod();
  return out;
}

std::string run_file(std::string checkpoint) {
  return checkpoint.erase(checkpoint.find_last_not_of('/') + 1) + ".yaml";
}

// The YAML of a run that continues training the converted model. tokenizer: its file; "": unknown.
std::string run_of(const std::string& checkpoint, const std::string& tokenizer) {
  std::vector<std::string> prepare{"trivet", "data", "prepare", "--input", "TEXT", "--output", "data/mine"};
  if (tokenizer.empty()) {
    prepare.insert(prepare.end(), {"--tokenizer", "KIND"});
  } else {
    const auto model = load_tokenizer(tokenizer);
    const std::string kind = model->kind();
    prepare.insert(prepare.end(), {"--tokenizer", kind, "--model", tokenizer});
    if (kind == "bpe") prepare.insert(prepare.end(), {"--eod-token", model->piece(model->eod())});
    if (model->bos() >= 0) prepare.insert(prepare.end(), {"--bos-token", model->piece(model->bos())});
  }
  const std::vector<std::string> train{"trivet", "train", run_file(checkpoint), "--resume", checkpoint};
  return fmt::format(
      "# Trains {} further. Choose data, learning rate, length and, with rope, perhaps a shorter model.seq_length:\n"
      "#   {}{}\n#   {}\n{}\ndata:\n  path: data/mine\n\noptimizer:\n  lr: 2e-05\n\n"
      "train:\n  train_iters: 1000\n  run_dir: runs/mine\n\ncheckpoint:\n  save_interval: 100\n",
      checkpoint, printable(shell_text(prepare)),
      tokenizer.empty() ? "   # with the model's tokenizer, which is unknown here" : "", shell_text(train),
      read_small_file(checkpoint + "/config.resolved.yaml", 1 << 20));
}

void convert_from(const std::string& source, const Conversion& options) {
  const double start = now_seconds();
  const auto weights = open_gpt_weights(source);
  const DType dtype = options.dtype == "bf16" ? DType::bf16 : DType::f32;
  std::string missing, tokenizer;  // missing: why no tokenizer is carried over
  if (options.to == "hf") {
    const HfExport made = export_of(options, *weights, missing);
    write_hf(*weights, options.destination, made);
    tokenizer = made.tokenizer;
  } else {
    tokenizer = tokenizer_beside(*weights, missing);
    write_checkpoint(*weights, options.destination,
                     {tokenizer, tokenizer.empty() ? "" : load_tokenizer(tokenizer)->fingerprint()});
  }
  fmt::print("{}: {} parameters in {} tensors of {}, {}, in {:.2f} s\n", options.destination,
             grouped(parameters_of(weights->tensors())), weights->tensors().size(), weights->path(), name_of(dtype),
             now_seconds() - start);
  // Opening the result also checks the written names and shapes.
  std::vector<std::string> lost = not_carried(*weights, *open_gpt_weights(options.destination));
  if (const OpenCheckpoint* checkpoint = weights->checkpoint(); checkpoint && checkpoint->state.step > 0)
    lost.insert(lost.begin(), fmt::format("the optimizer's state and the counts of step {}", checkpoint->state.step));
  lost.insert(lost.end(), weights->unread().begin(), weights->unread().end());
  if (!missing.empty()) lost.push_back(missing);
  if (!tokenizer.empty()) {  // the tokenizer file carries these ids
    const auto carried = load_tokenizer(tokenizer);
    std::erase(lost, fmt::format("bos_token_id {}", carried->bos()));
    std::erase(lost, fmt::format("eos_token_id {}", carried->eod()));
    if (options.to == "trivet") print_text(fmt::format("{} stays there, and the checkpoint names it", tokenizer));
  }
  if (!lost.empty()) print_text(fmt::format("not converted: {}", fmt::join(lost, "; ")));
  if (options.to != "trivet") return;
  const std::string file = run_file(options.destination);
  write_file(file, run_of(options.destination, tokenizer));
  print_text(fmt::format("{} continues training; it begins with the commands", file));
}

void convert(const Conversion& options) {
  if (options.to == "trivet" && !options.dtype.empty())
    throw ConfigError("--dtype " + options.dtype + ": Trivet's checkpoints are always fp32; leave it out");
  if (options.destination.find_first_not_of(' ') == std::string::npos)
    throw ConfigError(fmt::format("DESTINATION: found \"{}\", expected a name", options.destination));
  std::error_code ignored;  // a path that lstat() fails on cannot be written either
  if (const std::string& to = options.destination;
      std::filesystem::is_symlink(to.substr(0, to.find_last_not_of('/') + 1), ignored))
    throw ConfigError(options.destination + ": is a symbolic link; expected a new name, or its target");
  if (options.to != "hf" && (options.max_shard_size || !options.tokenizer.empty()))
    throw ConfigError("--max-shard-size and --tokenizer: only apply to --to hf; leave them out");
  if (options.to == "trivet" && file_exists(run_file(options.destination)))
    throw ConfigError(run_file(options.destination) +
                      ": exists already; expected a new name: the run's file goes there");
  const auto find = [&, source = options.source] {
    return is_hf_model(source) || is_llmc_model(source) ? source : find_checkpoints(source).front();
  };
  read_latest(find, [&](const std::string& source) { convert_from(source, options); });
}

}  // namespace

void add_convert_command(CLI::App& parent) {
  parent.description("inspect, verify and convert checkpoints");
  auto options = std::make_shared<Conversion>();
  CLI::App* command = parent.add_subcommand("convert", "write the weights in another format");
  add_argument(*command, "SOURCE", options->source,
               "a checkpoint (of a run: the latest), a Hugging Face GPT-2, Llama, Mistral, Qwen2 or Qwen3 (folder or "
               ".safetensors), or an llm.c model_*.bin");
  add_argument(*command, "DESTINATION", options->destination,
               "a new name: of a folder for hf, of a checkpoint directory for trivet");
  command->add_option("--to", options->to, "the format to write")
      ->option_text("hf|trivet")
      ->required()
      ->check(CLI::IsMember({"hf", "trivet"}));
  command->add_option("--dtype", options->dtype, "dtype of the weights, for hf")
      ->option_text("fp32|bf16 [fp32]")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  command->add_option("--max-shard-size", options->max_shard_size, "limit of hf's files; a tensor may exceed it")
      ->option_text("SIZE [5GB]")
      ->transform(CLI::AsSizeValue(true))
      ->check(whole_number(1));
  command->add_option("--tokenizer", options->tokenizer, "tokenizer for hf, instead of the one that the run names")
      ->option_text("tokenizer.json");
  command->callback([options] { convert(*options); });
}

}  // namespace trivet
