// trivet checkpoint and trivet generate, run as a user would, and sampling.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <regex>
#include <sstream>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "base/built_with.h"
#include "base/files.h"
#include "base/host.h"
#include "base/utf8.h"
#include "engine/config/problems.h"
#include "engine/data/indexed_dataset.h"
#include "engine/train/generate.h"
#include "engine/train/inference.h"
#include "parallel/comm/world.h"
#include "tests/engine/config/config_text.h"
#include "tests/support/temp_dir.h"
#include "tests/support/where.h"
#include "tools/convert/gpt_weights.h"

namespace trivet {
namespace {

const std::string kHfModel = source_path("tests/golden/hf_gpt2");

struct Ended {
  int code;
  std::string out, err;
};

// Runs `trivet ARGUMENTS` without a launcher's environment. before: shell commands to run first.
Ended trivet(const TempDir& dir, const std::string& arguments, const std::string& before = "") {
  const std::string out = dir / "out.txt", err = dir / "err.txt";
  const std::string command = before + fmt::format("env -u OMPI_COMM_WORLD_SIZE CUDA_VISIBLE_DEVICES= {} {} >{} 2>{}",
                                                   program_path(), arguments, out, err);
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_text(out), read_text(err)};
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Invalid arguments are refused immediately, with a message and exit code 64.
TEST(CommandLine, SaysWhatIsWrongWithItsArguments) {
  const TempDir dir;
  for (const auto& [arguments, part] : std::vector<std::pair<const char*, const char*>>{
           {"nosuch", "there is no subcommand or argument nosuch\n"},
           {"trian run.yaml --ranks 4", "there is no subcommand or argument trian: did you mean train?\n"},
           {"data inspct x", "there is no subcommand or argument inspct: did you mean inspect?\n"},
           {"train run.yaml --rank=4", "there is no option --rank: did you mean --ranks?\n"},
           {"train run.yaml --rank 4", "there is no option --rank: did you mean --ranks?\nRun with"},
           {"tran", "there is no subcommand or argument tran: did you mean train?\nRun with"},
           {"train", "RUN.yaml is required\n"},
           {"schedule --costs 1e308,1e308,1e308", "inf in all, expected less than 1e100"},
           {"schedule --latency nan", "--latency: found \"nan\", expected a number of at least 0\n"},
           {"schedule --depth 0", "--depth: found \"0\", expected an integer from 1 to"},
           {"schedule --costs 1,-1", "--costs: found \"-1\", expected numbers of at least 0"},
           {"data prepare --tokenizer bytes --input - --output dir/", "--output is \"dir/\", expected a prefix"},
           {"data inspect", "PREFIX is required\n"},
           {"train none.yaml", "none.yaml: no such file\n"},
           {"train ''", "the name of a YAML file is empty"},
           {"train x --inject kill", "--inject kill: has 1 part; expected"},
           {"study none.yaml", "none.yaml: no such file\n"},
           {"data inspect none", "there is no dataset none: neither none.idx nor none.bin exists"},
           {"checkpoint inspect none", "none: there is no such file or directory\n"},
           {"checkpoint convert none other --to hf", "none: there is no such file or directory\n"},
           {"generate none", "none: there is no such file or directory\n"},
           {"flight none", "none: there is no such file or directory\n"},
           {"trace none", "none: there is no such file or directory\n"},
           {"data prepare --tokenizer bytes --output d --input none", "none: there is no such file or directory\n"},
           {"data prepare --tokenizer bpe --output d --input - --model none",
            "--model: none: No such file or directory"},
           {"schedule --file none", "--file: none: No such file or directory\n"},
           {"generate x --prompt-file none", "--prompt-file: none: No such file or directory\n"},
           {"completion fish", "fish not in {bash,zsh}"},
           {"config --ranks 0", "--ranks: found \"0\", expected an integer from 1 to 1000000\n"},
           {"config --ranks 010", "--ranks: found \"010\""},
           {"data inspect x --documents -1", "--documents: found \"-1\", expected an integer of at least 0\n"},
           {"generate x --temperature nan", "--temperature: found \"nan\", expected a number of at least 0\n"},
           {"generate x --top-p 0", "--top-p: found \"0\", expected a number above 0, at most 1\n"},
           {"generate x --tensor-parallel 100000 --pipeline-parallel 100000",
            "are 10000000000 ranks, expected at most"},
           {"train x --top-k 3", "--top-k requires --generate"},
           {"schedule --bytes 5", "--bytes requires --bandwidth"},
           {"schedule --kind 1f1b,,zb-h1", "--kind: found \"\", expected names of schedules separated by commas"},
           {"schedule --kind zb-h1,", "--kind: found \"\""},
           {"schedule --costs 1,,1",
            "--costs: found \"\", expected numbers of at least 0 separated by commas, F,I,W or F,B"},
           {"schedule --costs 1,nan,1", "--costs: found \"nan\""},
           {"generate x --prompt-tokens 1,,2", "--prompt-tokens: found \"\", expected token ids"},
           {"generate x --prompt-tokens 3000000000", "--prompt-tokens: found \"3000000000\""},
           {"schedule --svg ''", "--svg: found \"\", expected the name of an .svg file"},
           {"config x --plot-schedule x.png", "--plot-schedule: found \"x.png\", expected the name of an .svg file"},
           {"trace x --hta ''", "--hta: is empty, expected a file name"},
           {"schedule --pipeline 65536 --microbatches 2000000000", "e+14 forward passes, expected at most 10000000"}}) {
    const Ended ended = trivet(dir, arguments);
    EXPECT_EQ(ended.code, 64) << arguments;
    EXPECT_TRUE(has(ended.err, part)) << arguments << ": " << ended.err;
  }
}

// A file that exists but cannot be read is an I/O error; one with the wrong content is a data error.
TEST(CommandLine, SaysWhatIsWrongWithFiles) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "folder");
  std::filesystem::create_symlink("loop", dir / "loop");
  const std::string prepare = "data prepare --tokenizer bytes --output " + (dir / "d") + " --input ";
  write_text(dir / "run.yaml", kGoodConfig);
  write_text(dir / "own.bin", "ab");
  write_text(dir / "folder/a.md", "ab");
  write_text(dir / "bare.yaml", "model: {num_layers: 2, hidden_size: 8, num_attention_heads: 4, seq_length: 16}\n");
  const std::string plan = "plan " + (dir / "run.yaml") + " --system h100-sxm --ranks 2 ";
  for (const auto& [arguments, code, part] : std::vector<std::tuple<std::string, int, std::string>>{
           {"flight " + (dir / "folder"), 65, "folder: no flight folder"},
           {"trace " + (dir / "folder"), 65, "trace.json: not found"},
           {plan + "--trace " + (dir / "run.yaml"), 64, "run.yaml: is both read and written"},
           {plan + "--search --study " + (dir / "folder/../run.yaml"), 64, "run.yaml: is both read and written"},
           {plan + "--search --search-out x.yaml --study x.yaml", 64,
            "x.yaml: is both read and written, or written twice"},
           {"data prepare --tokenizer bytes --force --output " + (dir / "own") + " --input " + (dir / "own.bin"), 64,
            "own.bin is an input"},
           {"train " + std::string(300, 'a'), 74, std::string(300, 'a') + ": File name too long"},
           {"checkpoint inspect " + (dir / "loop"), 74, "loop: cannot be found: Too many levels"},
           {"plan " + (dir / "bare.yaml") + " --system h100-sxm --ranks 2", 64, "model.vocab_size: is auto, and"},
           {prepare + (dir / "loop"), 74, "loop: cannot open it: Too many levels"},
           {prepare + (dir / "folder") + " --extensions '*.md'", 0, ""}}) {
    const Ended ended = trivet(dir, arguments);
    EXPECT_EQ(ended.code, code) << arguments << ended.err;
    EXPECT_TRUE(has(ended.err, part)) << ended.err;
    EXPECT_FALSE(has(ended.err, "internal error")) << ended.err;
  }
  const Ended lengthy = trivet(dir, "checkpoint inspect " + std::string(100'000, 'a'));
  EXPECT_EQ(lengthy.code, 74);
  EXPECT_LT(lengthy.err.size(), 1500u);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The subcommands that the help of `path` lists.
std::vector<std::string> commands_below(const std::string& help, const std::string& path) {
  std::vector<std::string> paths;
  const std::vector<std::string> lines = lines_of(help);
  for (auto line = std::ranges::find(lines, "Subcommands:"); line != lines.end() && !line->empty(); ++line)
    if (line->starts_with("  ") && line->at(2) != ' ')
      paths.push_back(path + line->substr(2, line->find(' ', 2) - 2) + " ");
  return paths;
}

// The help of every command fits a screen of 80 x 45, and ends with an example that begins like its usage.
TEST(CommandLine, HelpFitsAScreenAndEndsWithAnExample) {
  const TempDir dir;
  std::vector<std::string> paths = {""};
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string path = paths[i];
    const Ended help = trivet(dir, path + "--help");
    EXPECT_EQ(help.code, 0) << path;
    const std::vector<std::string> lines = lines_of(help.out);
    EXPECT_LE(lines.size(), 45u) << help.out;
    for (const std::string& line : lines)
      EXPECT_TRUE(line.size() <= 80 || line.starts_with("  trivet ")) << path << ": " << line;
    ASSERT_GE(lines.size(), 2u);
    EXPECT_EQ(lines[lines.size() - 2], "Example:") << path;
    EXPECT_TRUE(has(lines.back(), "trivet " + path.substr(0, path.find(' ')))) << path << ": " << lines.back();
    for (std::string& below : commands_below(help.out, path)) paths.push_back(std::move(below));
  }
  EXPECT_GE(paths.size(), 14u);
}

TEST(CommandLine, NamesItsVersion) {
  const TempDir dir;
  const Ended ended = trivet(dir, "--version");
  EXPECT_EQ(ended.code, 0);
  const std::vector<std::string> lines = lines_of(ended.out);
  ASSERT_EQ(lines.size(), 4u) << ended.out;
  EXPECT_TRUE(lines[0].starts_with("trivet 0.")) << lines[0];
  EXPECT_TRUE(has(lines[0], ", commit ")) << lines[0];
  EXPECT_TRUE(lines[1].starts_with("compiled by ")) << lines[1];
  EXPECT_TRUE(lines[2].starts_with("CPU: ") && lines[2].size() > 8) << lines[2];
  EXPECT_TRUE(lines[3].starts_with("back ends: threads")) << lines[3];
}

// Bash's completions for the last of `words`, after `source <(trivet completion bash)`.
TEST(CommandLine, BashCompletesCommandsOptionsAndKeys) {
  const TempDir dir;
  const auto offered = [&](const std::string& words, int last) {
    const std::string script = fmt::format(
        "source <({} completion bash); COMP_WORDS=({}) COMP_CWORD={}; _trivet 2>/dev/null; echo \"${{COMPREPLY[*]}}\"",
        program_path(), words, last);
    write_text(dir / "script", script);
    EXPECT_EQ(std::system(fmt::format("bash {} >{}", dir / "script", dir / "out").c_str()), 0);
    return read_text(dir / "out");
  };
  EXPECT_EQ(offered("trivet tr", 1), "train trace\n");
  EXPECT_EQ(offered("build/trivet data pre", 2), "prepare\n");
  EXPECT_EQ(offered("trivet train run.yaml --ran", 3), "--ranks\n");
  EXPECT_EQ(offered("trivet train run.yaml --set optimizer.lr_warmup_it", 4), "optimizer.lr_warmup_iters=\n");
  EXPECT_EQ(offered("trivet train conf", 2), "\n");  // a file: bash's own completion
  // values that are words
  EXPECT_EQ(offered("trivet checkpoint convert runs/demo out --to h", 6), "hf\n");
  EXPECT_EQ(offered("trivet schedule --kind zb-v", 3), "zb-v\n");
  EXPECT_EQ(offered("trivet train run.yaml --resume ''", 4), "auto none\n");
  EXPECT_EQ(offered("trivet train run.yaml --resume runs/demo", 4), "\n");
  EXPECT_EQ(offered("trivet completion z", 2), "zsh\n");
  EXPECT_EQ(offered("trivet train run.yaml --set precision.dtype = ''", 6), "fp32 bf16\n");
  EXPECT_EQ(offered("trivet train run.yaml --set train.trace =", 5), "true false\n");
  EXPECT_EQ(offered("trivet train run.yaml --set parallel.pipeline_schedule = zb-v", 6), "zb-v\n");
  EXPECT_EQ(offered("trivet train run.yaml --set parallel.pipeline_schedule=zb-v", 4),  // the words as zsh splits them
            "parallel.pipeline_schedule=zb-v\n");
  EXPECT_EQ(offered("trivet train run.yaml --set train.run_dir = runs", 6), "\n");
  EXPECT_TRUE(trivet(dir, "completion zsh").out.starts_with("autoload -U +X compinit"));
}

// The best run of a search under a benchmark's rules contains what the rules derive, so it is valid under them again.
TEST(CommandLine, WhatASearchUnderRulesFindsIsARunByThem) {
  const TempDir dir;
  const std::string of_gpus = " --system h100-sxm --ranks 2 ", best = dir / "best.yaml";
  const Ended found = trivet(dir, "plan " + source_path("configs/mlperf/tiny.yaml") + of_gpus +
                                      "--set model.vocab_size=4096 --search --search-seconds 0.5 --search-out " + best);
  ASSERT_EQ(found.code, 0) << found.err;
  const Ended again = trivet(dir, "plan " + best + of_gpus);
  EXPECT_EQ(again.code, 0) << again.err;
}

// Tables fit a terminal of 80 columns; without one they are not shortened, and no escape code is printed.
TEST(CommandLine, TablesFitTheTerminal) {
  const TempDir dir;
  ASSERT_EQ(trivet(dir, fmt::format("checkpoint convert {} {} --to trivet", kHfModel, dir / "model")).code, 0);
  const std::string prepare = fmt::format("data prepare --input {} --tokenizer bytes --force --output {} 2>/dev/null",
                                          source_path("README.md"), dir / "d");
  const std::string config = "config " + source_path("configs/tiny.yaml") + " --ranks 8 --set model.vocab_size=4096";
  for (const std::string& arguments : {config, std::string("config --keys"), std::string("schedule --kind zb-v,zb-h1"),
                                       "checkpoint verify " + (dir / "model") + " 2>/dev/null", prepare}) {
    const std::string command = program_path() + " " + arguments;
    EXPECT_EQ(std::system(fmt::format("NO_COLOR=1 script -qec 'stty cols 80; {}' /dev/null >{} </dev/null", command,
                                      dir / "terminal")
                              .c_str()),
              0);
    size_t wide = 0;
    for (std::string line : lines_of(read_text(dir / "terminal"))) {
      while (line.ends_with('\r')) line.pop_back();
      wide += std::ranges::count_if(line, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }) > 80;
    }
    EXPECT_EQ(wide, 0u) << read_text(dir / "terminal");
    const Ended piped = trivet(dir, arguments);
    EXPECT_EQ(piped.code, 0) << piped.err;
    EXPECT_FALSE(has(piped.out, "\x1b"));
    EXPECT_LE(lines_of(piped.out).size(), lines_of(read_text(dir / "terminal")).size());
  }
}

// Full or closed standard output is an error, and the message says why.
TEST(CommandLine, KnowsThatItsOutputIsWritten) {
  const TempDir dir;
  const std::string verified = dir / "model", generate = fmt::format("generate {} --prompt-tokens 3,1", verified);
  ASSERT_EQ(trivet(dir, fmt::format("checkpoint convert {} {} --to trivet", kHfModel, verified)).code, 0);
  for (const std::string& arguments : {std::string("schedule --text"), "checkpoint verify " + verified, generate})
    for (const auto& [to, why] : {std::pair{">/dev/full", ENOSPC}, {">&-", EBADF}}) {
      const std::string command = fmt::format("{} {} {} 2>{}", program_path(), arguments, to, dir / "err.txt");
      const int status = std::system(command.c_str());
      EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 74) << command;
      EXPECT_EQ(read_text(dir / "err.txt"),
                fmt::format("trivet: standard output cannot be written: {}\n", std::strerror(why)))
          << command;
    }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers' own threads need memory
// The message names only the limit that was hit.
TEST(CommandLine, SaysWhyAThreadCannotBeStarted) {
  const auto start = [](rlim_t room) {
    int64_t pages = 0;  // pages of data: the sixth number; `room` leaves memory for the messages themselves
    std::ifstream statm("/proc/self/statm");
    for (int number = 0; number < 6; ++number) statm >> pages;
    const rlim_t value = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE)) + room;
    const rlimit low = {value, value};
    setrlimit(RLIMIT_DATA, &low);
    try {
      naming_keys([] { std::thread([] {}).join(); });
    } catch (const ConfigError& error) {
      write_stderr(error.what());
      std::_Exit(64);
    }
    std::_Exit(0);
  };
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(start(1 << 20), testing::ExitedWithCode(64), "^a thread cannot.*stack .*ulimit -d.[^-]*$");
}
#endif

// A command stopped by a signal leaves no file; after a kill, the next start removes the files left.
TEST(DataCommands, LeaveNothingWhereTheyAreStopped) {
  const TempDir dir;
  write_text(dir / "one.txt", std::string(30'000'000, 'x'));
  const std::string prepare =
      fmt::format("data prepare --input {} --tokenizer bytes --output {}", dir / "one.txt", dir / "d");
  const auto stopped_by = [&](const char* signal) {
    const std::string wait = fmt::format("until test -e {}; do sleep 0.01; done; ", dir / "d.bin.tmp");
    return WEXITSTATUS(std::system(
        fmt::format("{} {} >/dev/null 2>&1 & {} kill -s {} $!; wait $!", program_path(), prepare, wait, signal)
            .c_str()));
  };
  EXPECT_EQ(stopped_by("TERM"), 128 + SIGTERM);
  for (const char* suffix : {".bin.tmp", ".idx.tmp", ".json.tmp", ".bin"})
    EXPECT_FALSE(file_exists(dir / "d" + suffix));
  EXPECT_EQ(stopped_by("KILL"), 128 + SIGKILL);
  EXPECT_TRUE(file_exists(dir / "d.bin.tmp"));
  write_text(dir / "d.model.tmp", "left");  // from a run with a tokenizer
  EXPECT_EQ(trivet(dir, prepare).code, 0);
  for (const char* suffix : {".bin.tmp", ".idx.tmp", ".json.tmp", ".model.tmp"})
    EXPECT_FALSE(file_exists(dir / "d" + suffix)) << suffix;
}

TEST(CheckpointCommands, ConvertInspectVerifyGenerate) {
  // given: a model converted from Hugging Face
  const TempDir dir;
  const std::string run = dir / "run", step = run + "/checkpoints/step-00000000";
  std::filesystem::create_directories(run + "/checkpoints");
  const Ended converted = trivet(dir, fmt::format("checkpoint convert {} {} --to trivet", kHfModel, step));
  EXPECT_EQ(converted.code, 0) << converted.err;
  EXPECT_TRUE(has(converted.out, "2,176 parameters in 28 tensors")) << converted.out;

  // then: the run's folder suffices to find it; every tensor is listed, with statistics if requested
  const Ended inspected = trivet(dir, "checkpoint inspect --tensors " + run);
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  for (const char* part : {"step-00000000", "2 layers, hidden 8, ffn 32, 2 heads, 12 positions", "[40, 8]",
                           "decoder.layers.1.mlp.linear_fc2.weight", "weights: 28 tensors, 2,176 elements, 8.50 KiB",
                           "second moments: 28 tensors", "non-finite values: none"})
    EXPECT_TRUE(has(inspected.out, part)) << part << "\n" << inspected.out;
  const Ended summary = trivet(dir, "checkpoint inspect " + run);
  EXPECT_EQ(summary.code, 0) << summary.err;
  EXPECT_FALSE(has(summary.out, "linear_fc2")) << summary.out;
  EXPECT_TRUE(has(summary.out, "weights: 28 tensors, 2,176 elements")) << summary.out;
  EXPECT_TRUE(has(summary.out, "step-00000000: sound: step 0, 3 files, 84 tensors")) << summary.out;
  const Ended verified = trivet(dir, "checkpoint verify " + run);
  EXPECT_EQ(verified.code, 0) << verified.err;
  EXPECT_TRUE(has(verified.out, "sound: step 0, 3 files, 84 tensors")) << verified.out;

  // and: it generates the same tokens on every layout
  const std::string start = fmt::format("generate {} --prompt-tokens 3,1,39 --set device.threads_per_rank=1", run);
  const std::string generate = start + " --tokens 12";
  for (const char* how : {"--temperature 0", "--temperature 1.5 --top-k 0 --top-p 0.9 --seed 7"}) {
    const Ended one = trivet(dir, fmt::format("{} {}", generate, how));
    EXPECT_EQ(one.code, 0) << one.err;
    EXPECT_TRUE(one.out.starts_with("3,1,39,")) << one.out;
    EXPECT_EQ(std::count(one.out.begin(), one.out.end(), ','), 14) << one.out;
    const Ended four = trivet(dir, fmt::format("{} {} --tensor-parallel 2 --pipeline-parallel 2", generate, how));
    EXPECT_EQ(four.out, one.out) << four.err;
    // seven positions, which sequence parallelism rounds up to eight: the same text, but shorter
    const Ended two = trivet(
        dir, fmt::format("{} --tokens 4 {} --tensor-parallel 2 --set parallel.sequence_parallel=true", start, how));
    EXPECT_TRUE(one.out.starts_with(two.out.substr(0, two.out.size() - 1))) << two.out << two.err;
    EXPECT_EQ(std::count(two.out.begin(), two.out.end(), ','), 6) << two.out << two.err;
  }
  EXPECT_NE(trivet(dir, generate + " --top-k 0 --seed 1").out, trivet(dir, generate + " --top-k 0 --seed 2").out);

  // and: an invalid request is refused, with a hint at what would work
  const Ended text = trivet(dir, fmt::format("generate {} --prompt hello", run));
  EXPECT_EQ(text.code, 64);
  EXPECT_TRUE(has(text.err, "give --tokenizer PATH or bytes, or --prompt-tokens")) << text.err;
  const Ended vocabulary = trivet(dir, fmt::format("generate {} --prompt hello --tokenizer bytes", run));
  EXPECT_EQ(vocabulary.code, 65);
  EXPECT_TRUE(has(vocabulary.err, "the tokenizer has 257 ids, but the model's vocabulary 40")) << vocabulary.err;
  const Ended deeper = trivet(dir, generate + " --set model.num_layers=6");
  EXPECT_EQ(deeper.code, 64);
  EXPECT_TRUE(has(deeper.err, "--set model.num_layers: found 6, but the checkpoint's model has 2")) << deeper.err;
  const Ended ranks = trivet(dir, generate + " --ranks 4");
  EXPECT_EQ(ranks.code, 64);
  EXPECT_TRUE(has(ranks.err, "choose --tensor-parallel and --pipeline-parallel")) << ranks.err;
  const Ended three = trivet(dir, generate + " --tensor-parallel 3");
  EXPECT_EQ(three.code, 64);
  EXPECT_TRUE(three.err.starts_with("trivet: --tensor-parallel: parallel.tensor_model_parallel_size: 3 ")) << three.err;
  EXPECT_EQ(trivet(dir, fmt::format("generate {} --prompt-tokens 3,40", run)).code, 64);
  EXPECT_EQ(trivet(dir, fmt::format("checkpoint convert {} {} --to trivet", kHfModel, step)).code, 64);  // exists
}

TEST(TrainCommand, DrawsSamplesAsGenerateDoes) {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 60; ++i)
    text += fmt::format("Document {} says that {} and {} are {}.\n\n", i, i, i + 1, 2 * i + 1);
  write_text(dir / "text.txt", text);
  const Ended prepared =
      trivet(dir, fmt::format("data prepare --input {} --tokenizer bytes --document paragraph --output {}",
                              dir / "text.txt", dir / "corpus"));
  ASSERT_EQ(prepared.code, 0) << prepared.err;
  const auto sample = [&](const std::string& arguments) {
    const Ended ended = trivet(
        dir, fmt::format("train {} --ranks 1 --resume none --set parallel.tensor_model_parallel_size=1 "
                         "--set parallel.sequence_parallel=false --set parallel.pipeline_model_parallel_size=1 "
                         "--set model.hidden_size=32 --set model.seq_length=16 --set batch.global_batch_size=4 "
                         "--set train.train_iters=1 --set train.eval_iters=1 --set checkpoint.save_interval=0 "
                         "--set device.peak_tflops=1 --set data.path={} --set train.run_dir={} --generate-tokens 20 {}",
                         source_path("configs/tiny.yaml"), dir / "corpus", dir / "run", arguments));
    EXPECT_EQ(ended.code, 0) << ended.err;
    const size_t evaluation = ended.out.find("evaluation at step 1"), begin = ended.out.find("\n\n", evaluation);
    return ended.out.substr(begin, ended.out.find("time of a step") - begin);
  };
  const std::string one = sample("--generate Docu --seed 1");
  EXPECT_TRUE(has(one, "Docu")) << one;
  EXPECT_EQ(sample("--generate Docu --seed 1"), one);
  EXPECT_NE(sample("--generate Docu --seed 2"), one);
  EXPECT_EQ(sample("--generate Docu --seed 2 --top-p 1e-9"), sample("--generate Docu --temperature 0"));
  EXPECT_GT(sample("--generate '' --top-k 0").size(), 10u) << "a new document";
}

TEST(TrainCommand, TellsWhatEachFaultDoes) {
  const TempDir dir;
  for (const char* arguments : {"train --inject help", "train run.yaml --inject kill:0:1 --inject help"}) {
    const Ended help = trivet(dir, arguments);
    EXPECT_EQ(help.code, 0) << help.err;
    EXPECT_TRUE(has(help.out, "  bitflip     one bit of a weight")) << help.out;
    EXPECT_EQ(help.err, "");
  }
}

TEST(TrainCommand, RanksOfMpiNeedALauncher) {
  const TempDir dir;
  const std::string config = source_path("configs/tiny.yaml"),
                    one =
                        "--set parallel.tensor_model_parallel_size=1 "
                        "--set parallel.sequence_parallel=false --set parallel.pipeline_model_parallel_size=1";
  for (const auto& [arguments, ranks] : std::vector<std::pair<std::string, int>>{
           {"train " + config + " --ranks 2", 2},
           {"train " + config, 4},
           {"train " + config + " --ranks 1 " + one, 1},
           {fmt::format("generate {} --prompt-tokens 3 --pipeline-parallel 2", kHfModel), 2},
           {fmt::format("generate {} --prompt-tokens 3", kHfModel), 1}}) {
    const Ended ended =
        trivet(dir, fmt::format("{} --set comm.backend=mpi --set train.run_dir={}", arguments, dir / "run"));
    EXPECT_EQ(ended.code, 64) << arguments << ended.err;
    EXPECT_TRUE(has(ended.err, fmt::format("no launcher started this process; expected mpirun -n {} trivet", ranks)))
        << arguments << ended.err;
    EXPECT_TRUE(ended.err.starts_with("trivet: ")) << ended.err;  // and no message from MPI
    EXPECT_FALSE(std::filesystem::exists(dir / "run"));
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers need more address space
TEST(TrainCommand, RefusesWhatDoesNotFitBeforeItWritesAnything) {
  const TempDir dir;
  IndexedDatasetWriter writer(dir / "corpus", TokenType::u16);
  writer.add_document(std::vector<int32_t>(4000, 1));
  writer.finish();
  const Ended ended = trivet(
      dir,
      fmt::format(
          "train {} --ranks 1 --set parallel.tensor_model_parallel_size=1 --set parallel.sequence_parallel=false "
          "--set parallel.pipeline_model_parallel_size=1 --set model.hidden_size=4096 --set model.vocab_size=257 "
          "--set data.path={} --set train.eval_interval=0 --set train.run_dir={}",
          source_path("configs/tiny.yaml"), dir / "corpus", dir / "run"),
      "ulimit -v 4000000; ");
  EXPECT_EQ(ended.code, 64) << ended.err;
  EXPECT_TRUE(has(ended.err, "out of memory: 1 rank of this process needs ")) << ended.err;
  EXPECT_TRUE(has(ended.err, "but the process's address-space limit (ulimit -v) is 3.81 GiB")) << ended.err;
  EXPECT_TRUE(has(ended.err, "batch.micro_batch_size")) << ended.err;
  EXPECT_FALSE(std::filesystem::exists(dir / "run"));
}

TEST(DataCommands, MemoryThatCannotBeHadIsNamed) {
  const TempDir dir;
  write_text(dir / "one.jsonl", "{\"text\": \"" + std::string(100'000'000, 'x') + "\"}\n");
  // given: less memory than the text needs, in addition to what this build's libraries take
  const auto limit = [](int kib) { return fmt::format("ulimit -v {}; ", kib); };
  int kib = 50'000;
  while (trivet(dir, "--version", limit(kib)).code != 0) ASSERT_LT(kib += 50'000, 20'000'000);
  // when
  const Ended ended = trivet(
      dir,
      fmt::format("data prepare --input {} --tokenizer bytes --threads 1 --output {}", dir / "one.jsonl", dir / "d"),
      limit(kib + 50'000));
  // then
  EXPECT_EQ(ended.code, 64) << ended.err;
  EXPECT_TRUE(has(ended.err, "trivet: out of memory: cannot allocate ")) << ended.err;
  EXPECT_TRUE(has(ended.err, " bytes for a part of the text and the documents read ahead; the process's ad"))
      << ended.err;
  EXPECT_FALSE(std::filesystem::exists(dir / "d.bin"));
}
#endif

// A text that is one document cannot be split into training and validation data, but its paragraphs can.
TEST(DataCommands, OneTextIsSplitByParagraphs) {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 200; ++i) text += "A paragraph of a book, and its end.\n\n";
  write_text(dir / "book.txt", text);
  const auto prepare = [&](const char* name, const char* more) {
    return trivet(dir, fmt::format("data prepare --tokenizer bytes --input {} --output {} {}", dir / "book.txt",
                                   dir / name, more));
  };
  const auto config = [&](const char* name, const char* more = "") {
    return trivet(dir, fmt::format("config {} --ranks 4 --set data.path={} {}", source_path("configs/tiny.yaml"),
                                   dir / name, more));
  };
  const Ended whole = prepare("whole", "");
  EXPECT_TRUE(has(whole.out, "whole: 1 document, ") && has(whole.out, " KiB of text, ")) << whole.out << whole.err;
  EXPECT_FALSE(has(whole.out + whole.err, "MB/s")) << whole.out << whole.err;
  const Ended refused = config("whole");
  EXPECT_EQ(refused.code, 64);
  EXPECT_TRUE(has(refused.err, "leaves none of the 1 document of")) << refused.err;
  EXPECT_TRUE(has(refused.err, "--document paragraph), change data.split")) << refused.err;
  EXPECT_EQ(prepare("parts", "--document paragraph").code, 0);
  const Ended good = config("parts");
  EXPECT_EQ(good.code, 0) << good.err;
  const Ended inspected = trivet(dir, "data inspect " + (dir / "parts.bin"));
  EXPECT_EQ(inspected.code, 0) << inspected.err;

  // and: a build without CUDA says what it cannot do
  const Ended cuda = config("parts", "--set device.kind=cuda");
  EXPECT_EQ(cuda.code, 0) << cuda.err;
  EXPECT_EQ(has(cuda.err, "this build has no CUDA: it can plan this run"), !built_with_cuda()) << cuda.err;
  if (built_with_cuda()) return;
  const Ended train = trivet(dir, fmt::format("train {} --ranks 4 --set data.path={} --set device.kind=cuda --set "
                                              "train.run_dir={}",
                                              source_path("configs/tiny.yaml"), dir / "parts", dir / "run"));
  EXPECT_EQ(train.code, 64);
  EXPECT_TRUE(has(train.err, "device.kind: found cuda, but this build has no CUDA; expected cpu")) << train.err;
}

// Standard input is read up to the size limit of a prompt.
TEST(GenerateCommand, ReadsItsPromptFromStandardInput) {
  const TempDir dir;
  const std::string step = dir / "step-00000000";
  write_checkpoint(*open_gpt_weights(kHfModel), step);
  write_text(dir / "long", std::string((1 << 20) + 1, 'x'));
  const std::string generate = "generate " + step + " --tokens 3 --prompt-file - ";
  const Ended long_one = trivet(dir, generate + "<" + (dir / "long"));
  EXPECT_EQ(long_one.code, 65);
  EXPECT_TRUE(has(long_one.err, "--prompt-file -: has more than 1048576 bytes")) << long_one.err;
  const Ended short_one = trivet(dir, generate, "echo hello | ");  // this model comes without a tokenizer
  EXPECT_EQ(short_one.code, 64);
  EXPECT_TRUE(has(short_one.err, "give --tokenizer PATH or bytes")) << short_one.err;
}

// A name with a newline, an escape sequence and a byte that is not UTF-8 is printed as one line of text.
TEST(CommandLine, EscapesNamesInMessages) {
  const TempDir dir;
  const std::string name = "'no\nfile\x1b[31m\xff'";
  for (const std::string arguments :
       {"checkpoint inspect ", "train ", "study ", "schedule --file ", "data inspect ", "config ", "no",
        "generate --prompt x ", "flight ", "data prepare --tokenizer bytes --output x --input "}) {
    const Ended ended = trivet(dir, arguments + name);
    EXPECT_TRUE(ended.code == 64 || ended.code == 65 || ended.code == 74) << arguments << ended.code;
    EXPECT_TRUE(has(ended.err, "no\\x0afile\\x1b[31m\\xff")) << arguments << ended.err;
    EXPECT_EQ(printable(ended.err), ended.err) << arguments;
  }
}

// An export includes the run's tokenizer, and names what it leaves out.
TEST(CheckpointCommands, ConvertBringsTheTokenizer) {
  // given: a Llama trained for one step, with a BPE trained on a text
  const TempDir dir;
  const std::string prepare = fmt::format("data prepare --input {} --tokenizer bpe --vocab-size 300 --output {}",
                                          source_path("README.md"), dir / "d");
  ASSERT_EQ(trivet(dir, prepare).code, 0);
  std::string train = fmt::format("train {} --ranks 1", source_path("configs/llama_tiny.yaml"));
  for (const char* set : {"train.train_iters=1", "model.num_layers=1", "model.hidden_size=16", "model.seq_length=16",
                          "model.hidden_dropout=0.1", "parallel.tensor_model_parallel_size=1",
                          "parallel.sequence_parallel=false", "parallel.pipeline_model_parallel_size=1",
                          "batch.micro_batch_size=1", "batch.global_batch_size=1", "train.eval_interval=0"})
    train += std::string(" --set ") + set;
  const Ended trained =
      trivet(dir, fmt::format("{} --set data.path={} --set train.run_dir={}", train, dir / "d", dir / "run"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  // when
  const Ended converted = trivet(dir, fmt::format("checkpoint convert {} {} --to hf", dir / "run", dir / "hf"));
  // then
  EXPECT_EQ(converted.code, 0) << converted.err;
  EXPECT_TRUE(
      has(converted.out, "not converted: the optimizer's state and the counts of step 1; model.hidden_dropout 0.1"))
      << converted.out;
  for (const std::string name : {"tokenizer.json", "tokenizer_config.json"})
    EXPECT_EQ(read_text(dir / "hf/" + name), read_text(dir / "d." + name));
  EXPECT_TRUE(has(read_text(dir / "hf/config.json"), "\"eos_token_id\": 0")) << read_text(dir / "hf/config.json");

  // and: a round trip keeps the tokenizer, and names what it drops
  write_text(dir / "hf/generation_config.json", "{}");
  const Ended back = trivet(dir, fmt::format("checkpoint convert {} {} --to trivet", dir / "hf", dir / "back"));
  EXPECT_EQ(back.code, 0) << back.err;
  EXPECT_TRUE(has(back.out, dir / "hf/tokenizer.json stays there, and the checkpoint names it")) << back.out;
  EXPECT_TRUE(has(back.out, "not converted: generation_config.json\n")) << back.out;
  EXPECT_TRUE(has(back.out, dir / "back.yaml continues training; it begins with the commands")) << back.out;
  // and: those commands work
  const std::string run = read_text(dir / "back.yaml");
  const auto command = [&](const char* name) {
    const size_t begin = run.find(std::string("#   trivet ") + name) + std::strlen("#   trivet ");
    return run.substr(begin, run.find('\n', begin) - begin);
  };
  EXPECT_TRUE(has(command("data"), "--eod-token '<|endoftext|>'")) << run;
  std::string again = command("data");
  again.replace(again.find("TEXT"), 4, source_path("README.md"));
  again.replace(again.find("data/mine"), 9, dir / "mine");
  EXPECT_EQ(trivet(dir, again).code, 0) << again;
  const Ended goes_on =
      trivet(dir, fmt::format("{} --set data.path={} --set train.run_dir={} --set train.train_iters=1 "
                              "--set batch.global_batch_size=1",
                              command("train"), dir / "mine", dir / "run-mine"));
  EXPECT_EQ(goes_on.code, 0) << goes_on.err;
  EXPECT_TRUE(has(goes_on.out, "resumed from " + (dir / "back"))) << goes_on.out;
  EXPECT_EQ(trivet(dir, fmt::format("checkpoint convert {} {}/ --to trivet", kHfModel, dir / "back")).code, 64);
  for (const std::string from : {"back", "hf"}) {
    const std::string again = dir / ("of-" + from);
    const Ended forth = trivet(dir, fmt::format("checkpoint convert {} {} --to hf", dir / from, again));
    EXPECT_EQ(forth.code, 0) << forth.err;
    EXPECT_EQ(has(forth.out, "not converted"), from == "hf") << forth.out;
    for (const std::string name : {"/tokenizer.json", "/tokenizer_config.json", "/config.json"})
      EXPECT_EQ(read_text(again + name), read_text(dir / "hf" + name)) << from;
  }

  // and: the control characters of a text do not reach a terminal
  const std::string colored = fmt::format("generate {} --tokens 1 --prompt $(printf '\\033')[31m", dir / "back");
  EXPECT_TRUE(has(trivet(dir, colored).out, "\x1b[31m"));
  EXPECT_EQ(std::system(fmt::format("script -qec '{} {}' /dev/null >{} </dev/null", program_path(),
                                    std::regex_replace(colored, std::regex("'"), "\""), dir / "terminal")
                            .c_str()),
            0);
  EXPECT_TRUE(has(read_text(dir / "terminal"), "\\x1b[31m")) << read_text(dir / "terminal");
  EXPECT_FALSE(has(read_text(dir / "terminal"), "\x1b[31m"));

  // and: the model accepts its tokenizer's data, but neither another tokenizer's of the same size nor a replaced file
  const auto resumed = [&](const std::string& data) {
    return trivet(dir, fmt::format("{} --set data.path={} --set train.run_dir={} --resume {}", train, dir / data,
                                   dir / ("run-" + data), dir / "back"));
  };
  ASSERT_EQ(trivet(dir, fmt::format("data prepare --input {} --tokenizer bpe --vocab-size 300 --output {}",
                                    source_path("docs/architecture.md"), dir / "e"))
                .code,
            0);
  EXPECT_EQ(resumed("d").code, 0);
  const Ended other = resumed("e");
  EXPECT_EQ(other.code, 65);
  EXPECT_TRUE(has(other.err, "the model was trained with a different tokenizer: found the fingerprint")) << other.err;
  write_text(dir / "hf/tokenizer.json", read_text(dir / "e.tokenizer.json"));
  for (const std::string& command : {"generate " + (dir / "back") + " --tokens 1 --prompt x",
                                     fmt::format("checkpoint convert {} {} --to hf", dir / "back", dir / "none")}) {
    const Ended replaced = trivet(dir, command);
    EXPECT_EQ(replaced.code, 65) << command;
    EXPECT_TRUE(has(replaced.err, "the model was trained with a different tokenizer")) << replaced.err;
  }
  for (const std::string name : {"''", "' '"}) {
    const Ended nameless = trivet(dir, fmt::format("checkpoint convert {} {} --to hf", kHfModel, name));
    EXPECT_EQ(nameless.code, 64);
    EXPECT_TRUE(has(nameless.err, "DESTINATION: found \"")) << nameless.err;
  }
  write_text(dir / "hf/tokenizer.json", "{}");
  EXPECT_TRUE(has(trivet(dir, fmt::format("checkpoint convert {} {} --to trivet", dir / "hf", dir / "none")).out,
                  "generation_config.json; the tokenizer (" + dir / "hf/tokenizer.json: pre_tokenizer: found"));
  std::filesystem::create_directory_symlink("nowhere", dir / "link");
  for (const char* to : {"hf", "trivet"}) {
    const Ended linked = trivet(dir, fmt::format("checkpoint convert {} {}/ --to {}", kHfModel, dir / "link", to));
    EXPECT_EQ(linked.code, 64);
    EXPECT_TRUE(has(linked.err, "link/: is a symbolic link; expected a new name, or its target"));
  }

  // and: another model's tokenizer is refused, and so are options that only one format supports
  const std::string golden = fmt::format("checkpoint convert {} {} --to ", kHfModel, dir / "out");
  for (const auto& [arguments, code, message] : std::initializer_list<std::tuple<std::string, int, const char*>>{
           {"hf --tokenizer " + (dir / "d.tokenizer.json"), 65,
            "the tokenizer has 300 ids, but the model's vocabulary 40"},
           {"hf --tokenizer d.model", 64, "--tokenizer d.model: expected a tokenizer.json"},
           {"trivet --tokenizer d.tokenizer.json", 64, "--max-shard-size and --tokenizer: only apply to --to hf"},
           {"trivet --max-shard-size 5GB", 64, "--max-shard-size and --tokenizer: only apply to --to hf"},
           {"hf --max-shard-size 0", 64, "--max-shard-size: found \"0\", expected an integer of at least 1"},
           {"hf --max-shard-size 99999999999GiB", 64, "--max-shard-size"},
           {"hf --max-shard-size 5XB", 64, "--max-shard-size"}}) {
    const Ended refused = trivet(dir, golden + arguments);
    EXPECT_EQ(refused.code, code) << arguments;
    EXPECT_TRUE(has(refused.err, message)) << arguments << ": " << refused.err;
  }
  EXPECT_FALSE(file_exists(dir / "out"));
}

TEST(CheckpointCommands, VerifyNamesWhatIsDamaged) {
  // given: a run with two checkpoints, in one of which a bit has flipped
  const TempDir dir;
  const std::string folder = dir / "run/checkpoints/";
  std::filesystem::create_directories(folder);
  for (const char* name : {"step-00000000", "step-00000001"})
    write_checkpoint(*open_gpt_weights(kHfModel), folder + name);
  // (both are of step 0, which does not matter here)
  const std::string path = folder + "step-00000001/rank-00000.safetensors";
  std::string bytes = read_text(path);
  bytes[bytes.size() - 5] ^= 1;  // a second moment of the last tensor
  write_text(path, bytes);

  // then: verify names the file, the tensor, and both hashes, and continues with the other checkpoint
  const Ended one = trivet(dir, "checkpoint verify " + folder + "step-00000001");
  EXPECT_EQ(one.code, 65);
  for (const char* part :
       {"rank-00000.safetensors: tensor optimizer.exp_avg_sq.decoder.final_layernorm.bias: found the hash", "expected",
        "the file is damaged"})
    EXPECT_TRUE(has(one.err, part)) << part << "\n" << one.err;
  const Ended inspected = trivet(dir, "checkpoint inspect " + folder + "step-00000001");
  EXPECT_EQ(inspected.code, 65);
  EXPECT_TRUE(has(inspected.out, "2 layers, hidden 8")) << inspected.out;
  EXPECT_TRUE(has(inspected.err, "the file is damaged")) << inspected.err;
  const Ended all = trivet(dir, "checkpoint verify " + (dir / "run"));
  EXPECT_EQ(all.code, 65);
  EXPECT_TRUE(has(all.out, "step-00000001: DAMAGED: ")) << all.out;
  EXPECT_TRUE(has(all.out, "step-00000000: sound")) << all.out;
  EXPECT_TRUE(has(all.err, "1 of 2 checkpoints damaged")) << all.err;
  EXPECT_EQ(trivet(dir, "checkpoint verify " + (dir / "nowhere")).code, 64);

  // and: a checkpoint that an active run removed after its folder was listed is not damaged
  std::filesystem::remove_all(folder + "step-00000001");
  std::filesystem::create_symlink("gone", folder + "step-00000001");
  const Ended gone = trivet(dir, "checkpoint verify " + (dir / "run"));
  EXPECT_EQ(gone.code, 0) << gone.out << gone.err;
  EXPECT_TRUE(has(gone.out, "step-00000001: was removed meanwhile")) << gone.out;
}

TEST(Sampling, TopKAndTopPCutTheTail) {
  // Probabilities 0.5, 0.25, 0.125, 0.125 of the tokens 2, 0, 1, 3.
  const std::vector<float> logits{std::log(0.25f), std::log(0.125f), std::log(0.5f), std::log(0.125f)};
  const auto drawn = [&](const Sampling& sampling) {
    std::map<int32_t, int> counts;
    for (int i = 0; i < 1000; ++i) ++counts[sample_token(logits, sampling, (i + 0.5) / 1000)];
    return counts;
  };
  using Counts = std::map<int32_t, int>;
  const Sampling all{.temperature = 1, .top_k = 0};
  EXPECT_EQ(drawn(all), (Counts{{2, 500}, {0, 250}, {1, 125}, {3, 125}}));
  Sampling sampling = all;
  sampling.top_k = 2;
  EXPECT_EQ(drawn(sampling), (Counts{{2, 667}, {0, 333}}));
  sampling = all;
  sampling.top_p = 0.6;  // 0.5 is not enough
  EXPECT_EQ(drawn(sampling), (Counts{{2, 667}, {0, 333}}));
  sampling.top_p = 0.4;
  EXPECT_EQ(drawn(sampling), (Counts{{2, 1000}}));
  sampling.top_p = 0.8;
  EXPECT_EQ(drawn(sampling).size(), 3u);
  sampling.top_k = 2;  // applied before top_p
  EXPECT_EQ(drawn(sampling).size(), 2u);
  sampling = all;
  sampling.temperature = 0;
  EXPECT_EQ(drawn(sampling), (Counts{{2, 1000}}));
}

}  // namespace
}  // namespace trivet
