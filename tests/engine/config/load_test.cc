#include "engine/config/load.h"

#include <algorithm>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <random>
#include <sys/stat.h>

#include "engine/config/fields.h"
#include "tests/engine/config/config_text.h"
#include "tests/support/temp_dir.h"

namespace trivet {
namespace {

// The error message for the good configuration with `from` replaced by `to`.
std::string error_with(const std::string& from, const std::string& to) {
  std::string text = kGoodConfig;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return parse_error(text.replace(at, from.size(), to));
}

TEST(Load, FileThenSetThenDefaultsWithTheirOrigins) {
  const LoadedConfig loaded = load_good({"train.seed=1", "optimizer.lr=1e-3", "train.seed=2", "data.valid_path="});
  EXPECT_EQ(loaded.config.model.hidden_size, 8);
  EXPECT_EQ(loaded.config.model.vocab_size, 100);
  EXPECT_EQ(loaded.config.data.path, "corpus");
  EXPECT_EQ(loaded.config.train.seed, 2);  // the last --set wins
  EXPECT_EQ(loaded.config.optimizer.lr, 1e-3);
  EXPECT_EQ(loaded.config.optimizer.min_lr, std::nullopt);  // derived later
  EXPECT_FALSE(loaded.config.parallel.bucket_size.has_value());

  EXPECT_EQ(to_string(loaded.origins.at("model.hidden_size")), "run.yaml:3");
  EXPECT_EQ(to_string(loaded.origins.at("train.seed")), "--set");
  EXPECT_EQ(loaded.origins.at("train.seed").where, "train.seed=2");
  EXPECT_FALSE(loaded.origins.contains("parallel.bucket_size"));
  EXPECT_EQ(to_string(Origin{}), "default");
}

TEST(Load, WaysToWriteAValue) {
  const LoadedConfig loaded = parse_config(
      "\xEF\xBB\xBF# a comment, and CRLF\r\nmodel: {num_layers: 1e0, hidden_size: 8, num_attention_heads: 2, "
      "seq_length: 4,\r\n"
      "  vocab_size: auto, ffn_hidden_size: ~}\r\n"
      "data:\r\n  path: 'a: b'\r\n  tokenizer_model: \"\"\r\n"
      "parallel:\r\n"
      "  bucket_size: 4_096\r\n"
      "train: {train_iters: 1.5e3, trace: true}\r\n",
      "run.yaml");
  EXPECT_EQ(loaded.config.model.num_layers, 1);
  EXPECT_EQ(loaded.config.model.vocab_size, std::nullopt);
  EXPECT_EQ(loaded.config.data.path, "a: b");
  EXPECT_EQ(loaded.config.parallel.bucket_size, 4096);
  EXPECT_EQ(loaded.config.train.train_iters, 1500);
  EXPECT_TRUE(loaded.config.train.trace);
}

TEST(Load, AListIsItsItemsWithCommasBetween) {
  const auto path = [](const std::string& value) {
    std::string text = kGoodConfig;
    const size_t data = text.find("data:"), next = text.find("\n", text.find("path:", data));
    text.replace(data, next - data, "data: {path: " + value + ", split: [90, 10]}");
    return parse_config(text, "run.yaml").config.data;
  };
  EXPECT_EQ(path("[0.3, 'data/a', 0.7, data/b]").path, "0.3,data/a,0.7,data/b");
  EXPECT_EQ(path("data/a").split, (std::vector<double>{90, 10}));
  for (const char* wrong : {"[0.3, 'a,b']", "[0.3, [a]]", "[0.3, ~]"}) {
    const std::string message = message_of<ConfigError>([&] { path(wrong); });
    EXPECT_NE(message.find("data.path: found a list, expected "), std::string::npos) << wrong;
    EXPECT_NE(message.find("contain no commas"), std::string::npos) << message;
  }
}

// Each YAML notation gives the same value in a file and on the command line, or both refuse it.
TEST(Load, ASetTakesWhatAFileTakes) {
  struct Case {
    const char *key, *value;
    bool good = true;
  };
  for (const auto& [key, value, good] : std::initializer_list<Case>{{"data.path", "[0.3, a, 0.7, b]"},
                                                                    {"data.path", "[0.3,a,0.7,b]"},
                                                                    {"data.path", "['a b', \"c\"]"},
                                                                    {"data.path", "[a]"},
                                                                    {"data.path", "\"0.3,a,0.7,b\""},
                                                                    {"data.path", "\"tab\\x20and \\\"\""},
                                                                    {"data.path", "'it''s'"},
                                                                    {"data.tokenizer_model", "\"\""},
                                                                    {"data.tokenizer_model", "''"},
                                                                    {"data.split", "[90, 10]"},
                                                                    {"data.split", "\"90,10\""},
                                                                    {"data.split", "90,10"},
                                                                    {"model.recompute_modules", "[core_attn, mlp]"},
                                                                    {"model.vocab_size", "~"},
                                                                    {"model.vocab_size", "null"},
                                                                    {"model.vocab_size", "auto"},
                                                                    {"overlap.tp_comm_overlap_qkv", "\"default\""},
                                                                    {"precision.dtype", "'bf16'"},
                                                                    {"parallel.order", "'tp-dp-pp'"},
                                                                    {"train.seed", "[1]", false},
                                                                    {"train.seed", "\"1\"", false},
                                                                    {"train.seed", "~", false},
                                                                    {"train.trace", "\"true\"", false},
                                                                    {"data.path", "['a,b']", false},
                                                                    {"data.path", "[[a]]", false},
                                                                    {"data.split", "[90, x]", false},
                                                                    {"data.split", "[90, ~]", false}}) {
    const std::string set = std::string(key) + "=" + value;
    const auto in_file = [&, key = key, value = value] {
      return to_yaml(parse_saved_config({{key, value}}, "run.yaml"));
    };
    const auto on_command_line = [&] { return to_yaml(parse_sets({&set, 1})); };
    if (good) {
      EXPECT_EQ(on_command_line(), in_file()) << set;
      continue;
    }
    const std::string problem = std::string(key) + ": found ";
    EXPECT_NE(message_of<DataError>(in_file).find(problem), std::string::npos) << set;
    EXPECT_NE(message_of(on_command_line).find(problem), std::string::npos) << set;
  }
}

TEST(Load, ASetOfPlainTextIsTakenAsItIs) {
  for (const char* text : {"[a", "a]", "~", "null", "a # b", "a: b", "#a", "{a: b}", "\"a", "'a'b", "a'b", "*a", "&a",
                           "!a", "@a", "- a", "a \"b\""})
    EXPECT_EQ(load_good({std::string("data.path=") + text}).config.data.path, text) << text;
  EXPECT_EQ(load_good({"train.run_dir=[a]"}).config.train.run_dir, "[a]");
}

TEST(Load, EachProblemNamesItsKeyItsPlaceAndWhatWasExpected) {
  EXPECT_EQ(error_with("hidden_size: 8", "hidden_size: wide"),
            "run.yaml:3: model.hidden_size: found \"wide\", expected an integer from 1 to 1000000");
  EXPECT_EQ(error_with("hidden_size: 8", "hidden_size: \"8\""),
            "run.yaml:3: model.hidden_size: found the quoted text \"8\", expected an integer from 1 to 1000000");
  EXPECT_EQ(error_with("hidden_size: 8", "hidden_size: 8.5"),
            "run.yaml:3: model.hidden_size: found \"8.5\", expected an integer from 1 to 1000000");
  EXPECT_EQ(error_with("hidden_size: 8", "hidden_size:"),
            "run.yaml:3: model.hidden_size: found nothing, expected an integer from 1 to 1000000");
  EXPECT_EQ(error_with("hidden_size: 8", "hidden_size: [8]"),
            "run.yaml:3: model.hidden_size: found a list, expected an integer from 1 to 1000000");
  EXPECT_EQ(error_with("hidden_size: 8", "hidden_size: {a: 8}"),
            "run.yaml:3: model.hidden_size: found a map, expected an integer from 1 to 1000000");
  EXPECT_EQ(error_with("hidden_size: 8", "hidden_size: -8"),
            "run.yaml:3: model.hidden_size: found -8, expected an integer from 1 to 1000000");
  EXPECT_EQ(error_with("  hidden_size: 8\n", ""),
            "run.yaml: model.hidden_size: is required: width of the residual stream, h, an integer from 1 to 1000000");
  EXPECT_EQ(error_with("hidden_size: 8", "hidden_sise: 8"),
            "run.yaml:3: model.hidden_sise: unknown key - did you mean model.hidden_size?");
  EXPECT_EQ(error_with("hidden_size: 8", "hidden_size: 8\n  seed: 1"),
            "run.yaml:4: model.seed: unknown key - did you mean data.seed or train.seed?");
  EXPECT_EQ(error_with("model:", "modle:"), "run.yaml:1: modle: unknown section - did you mean model?");
  EXPECT_EQ(error_with("train:", "zzzzzzzzz: 1\ntrain:"),
            "run.yaml:9: zzzzzzzzz: unknown section; sections are model, parallel, overlap, batch, optimizer, "
            "precision, data, "
            "comm, checkpoint, train, device");
  // This program is built without the tools: a tool's section is one error, without follow-up errors.
  const std::string of_tool = error_with("train:", "mlperf:\n  benchmark: gpt3\ntrain:\n  eval_iters: 7");
  EXPECT_EQ(of_tool.find("run.yaml:9: mlperf: "), 0u) << of_tool;
  EXPECT_NE(of_tool.find("TRIVET_TOOLS"), std::string::npos) << of_tool;
  EXPECT_EQ(of_tool.find('\n'), std::string::npos) << of_tool;
  EXPECT_EQ(error_with("hidden_size: 8", "hidden_size: 8\n  hidden_size: 16"),
            "run.yaml:4: model.hidden_size: duplicate key, first given at run.yaml:3");
  EXPECT_EQ(error_with("train:", "model:\n  hidden_dropout: 0\ntrain:"),
            "run.yaml:9: model: duplicate key, first given at run.yaml:1");
  EXPECT_EQ(error_with("train:", "precision: bf16\ntrain:"),
            "run.yaml:9: precision: expected a map of keys, found \"bf16\"");
  EXPECT_EQ(error_with("train:", "precision: [bf16]\ntrain:"),
            "run.yaml:9: precision: expected a map of keys, found a list");
  EXPECT_EQ(error_with("train:", "precision: {dtype: fp16}\ntrain:"),
            "run.yaml:9: precision.dtype: found \"fp16\", expected one of fp32, bf16");
  EXPECT_EQ(error_with("train:", "optimizer: {lr: .nan}\ntrain:"),
            "run.yaml:9: optimizer.lr: found \".nan\", expected a number above 0");
  EXPECT_EQ(error_with("train:", "device: {peak_tflops: -1}\ntrain:"),
            "run.yaml:9: device.peak_tflops: found -1, expected a number above 0, or auto");
  EXPECT_EQ(error_with("train_iters: 10", "train_iters: 10\n  trace: yes"),
            "run.yaml:11: train.trace: found \"yes\", expected true or false");
  EXPECT_EQ(error_with("path: corpus", "path: \"a\\nb\""),
            "run.yaml:8: data.path: found \"a\\x0ab\", expected text without control characters, at most 4096 bytes");
}

TEST(Load, ProblemsWithSet) {
  const auto error = [](const std::string& set) { return message_of([&] { load_good({set}); }); };
  EXPECT_EQ(error("model.num_layers"), "--set: found \"model.num_layers\", expected section.key=value");
  EXPECT_EQ(error("num_layers=3"),
            "--set: found \"num_layers=3\", expected section.key=value - did you mean model.num_layers?");
  EXPECT_EQ(error("seed=3"),
            "--set: found \"seed=3\", expected section.key=value - did you mean data.seed or train.seed?");
  EXPECT_EQ(error("model.num_heads=3"),
            "--set: model.num_heads: unknown key - did you mean model.num_attention_heads?");
  for (const char* key :
       {"train.wandb_project", "model.num_experts", "moe.capacity"})  // Megatron's keys, unlike any of ours
    EXPECT_EQ(error(std::string(key) + "=3").find(std::string("--set: ") + key + ": is not supported: Trivet has no"),
              0u);
  EXPECT_EQ(error(""), "--set: found \"\", expected section.key=value");
  EXPECT_EQ(error("model.num_layer=3"), "--set: model.num_layer: unknown key - did you mean model.num_layers?");
  EXPECT_EQ(error("mdel.num_layers=3"), "--set: mdel.num_layers: unknown section - did you mean model?");
  EXPECT_EQ(error("model.num_layers=three"),
            "--set: model.num_layers: found \"three\", expected an integer from 1 to 10000");
  EXPECT_EQ(error("model.num_layers="), "--set: model.num_layers: found \"\", expected an integer from 1 to 10000");
}

TEST(Load, AllProblemsAreInOneError) {
  const std::string error = parse_error(
      "model:\n  num_layer: 2\n  hidden_size: x\n  num_attention_heads: 0\n  seq_length: 16\ntrian:\n  train_iters: 1\n"
      "data: {path: corpus}\n",
      {"optimizer.adam_beta1=1", "what"});
  EXPECT_EQ(error,
            "the configuration has 6 problems:\n"
            "run.yaml:2: model.num_layer: unknown key - did you mean model.num_layers?\n"
            "run.yaml:3: model.hidden_size: found \"x\", expected an integer from 1 to 1000000\n"
            "run.yaml:4: model.num_attention_heads: found 0, expected an integer from 1 to 1000000\n"
            "run.yaml:6: trian: unknown section - did you mean train?\n"
            "--set: optimizer.adam_beta1: found 1, expected a number from 0 to 0.9999999\n"
            "--set: found \"what\", expected section.key=value");
}

TEST(Load, ALongListOfProblemsIsCut) {
  std::string text = kGoodConfig;
  for (int i = 0; i < 1000; ++i) text += "  qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq" + std::to_string(i) + ": 1\n";
  const std::string error = parse_error(text);
  EXPECT_TRUE(error.starts_with("the configuration has 1000 problems:\n"));
  EXPECT_TRUE(error.ends_with("\n… and 960 more")) << error.substr(error.size() - 100);
}

TEST(Load, WhatIsNotAMapOfSectionsIsRefused) {
  EXPECT_EQ(parse_error("- a\n- b\n"), "run.yaml:1: expected a map of sections, found a list");
  EXPECT_EQ(parse_error("hello"), "run.yaml:1: expected a map of sections, found \"hello\"");
  EXPECT_EQ(parse_error(""), parse_error("# only a comment\n"));
  EXPECT_TRUE(
      parse_error("").starts_with("the configuration has 6 problems:\nrun.yaml: model.num_layers: is required"));
  EXPECT_EQ(error_with("train:", "? [a, b]\n: {c: d}\ntrain:"), "run.yaml:9: expected a key, found a list");
  EXPECT_EQ(error_with("train:", "? {a: b}\n: 1\ntrain:"), "run.yaml:9: expected a key, found a map");
  EXPECT_EQ(error_with("hidden_size: 8", "hidden_size: 8\n  ? [a]\n  : 1"),
            "run.yaml:4: model: expected a key, found a list");
  EXPECT_EQ(parse_error(kGoodConfig + "---\ncomm:\n  backend: mpi\n"),
            "run.yaml: more than one YAML document, expected one");
  EXPECT_EQ(error_with("hidden_size: 8", "hidden_size: &x 8"),
            "run.yaml:3: model.hidden_size: anchors (&name) are not supported");
  EXPECT_EQ(error_with("seq_length: 16\n", "seq_length: &x 16\n  ffn_hidden_size: *x\n"),
            "the configuration has 2 problems:\n"
            "run.yaml:5: model.seq_length: anchors (&name) are not supported\n"
            "run.yaml:6: model.ffn_hidden_size: aliases (*name) are not supported: write the value out");
  EXPECT_EQ(error_with("hidden_size: 8", "hidden_size: !!int 8"),
            "run.yaml:3: model.hidden_size: tags are not supported, found \"tag:yaml.org,2002:int\"");
  EXPECT_EQ(parse_error(kGoodConfig + "comm: {backend: mpi\n"),
            "run.yaml:12: a '{' is not closed before this; expected ',' or '}'");
  for (const std::string open : {"\"ab", "'ab", "'it''s", "\"a\\\""})
    EXPECT_NE(parse_error(kGoodConfig + "comm:\n  backend: " + open + "\ndata:\n  split: -5\n")
                  .find("the document ends inside a quoted string: its closing quote is missing"),
              std::string::npos)
        << open;
  EXPECT_EQ(error_with("train:", std::string("\x04train:")),
            "run.yaml:9: control character 0x04, expected a YAML text");
}

TEST(Load, SyntaxThatIsWrongIsSaidInTheWordsOfAYamlFile) {
  const auto says = [](const std::string& error, const std::string& part) {
    EXPECT_NE(error.find(part), std::string::npos) << error << "\nlacks: " << part;
  };
  const std::string colon =
      "there is a ':' where no key can end; expected a ':' and a space after each key, also that "
      "of the line before";
  says(error_with("hidden_size: 8", "hidden_size 8"), "run.yaml:4: " + colon);
  says(error_with("hidden_size: 8", "hidden_size:8"), "run.yaml:4: " + colon);
  says(error_with("hidden_size: 8", "hidden_size: 8: 9"), "run.yaml:3: " + colon);
  says(error_with("hidden_size: 8", " hidden_size: 8"), "run.yaml:3: " + colon);
  says(error_with("  hidden_size: 8", "\thidden_size: 8"),
       "run.yaml:3: the line is indented with a tab, expected spaces");
  says(error_with("hidden_size: 8", "- hidden_size"), "run.yaml:3: the line does not fit the map above it");
  says(error_with("hidden_size: 8", "hidden_size: - 8"), "run.yaml:3: a list's '-' is not allowed here");
  says(error_with("hidden_size: 8", "hidden_size: [8"), "a '[' is not closed before this");
  says(error_with("hidden_size: 8", "hidden_size: @8"), "run.yaml:3: a value cannot begin with this character");
  says(error_with("  num_attention_heads", " num_attention_heads"), "run.yaml:4: the line does not fit the map above");
  for (const std::string empty : {": 8", "\"\": 8", "~: 8"})
    says(error_with("hidden_size: 8", empty), "run.yaml:3: model: there is no key before the ':', expected one");
  says(error_with("model:", ":"), "run.yaml:1: there is no key before the ':', expected one");
  says(error_with("hidden_size: 8", "\"a\\0b\": 8"), "run.yaml:3: model: the key \"a\\x00b\" has a NUL character");
}

// A missing value is not "auto"; an explicit null is.
TEST(Load, AValueThatIsMissingIsNotNull) {
  const std::string missing = "optimizer.min_lr: found nothing, expected a number of at least 0, or auto";
  EXPECT_EQ(parse_error(kGoodConfig + "optimizer: {lr: 1, min_lr}\n"), "run.yaml:11: " + missing);
  EXPECT_EQ(parse_error(kGoodConfig + "optimizer:\n  min_lr:\n  lr: 1\n"), "run.yaml:12: " + missing);
  EXPECT_EQ(parse_error(kGoodConfig + "optimizer:\n  lr: 1\n  min_lr:\n"), "run.yaml:13: " + missing);
  EXPECT_EQ(parse_error(kGoodConfig + "optimizer:\n  ? min_lr\n  ? lr\n  : 1\n"), "run.yaml:12: " + missing);
  EXPECT_EQ(message_of([] { load_good({"optimizer.min_lr="}); }),
            "--set: optimizer.min_lr: found \"\", expected a number of at least 0, or auto");
  for (const std::string null : {"~", "null", "Null", "NULL"}) {
    const auto load = [&](const std::string& more) { return parse_config(kGoodConfig + more, "run.yaml").config; };
    EXPECT_EQ(load("optimizer:\n  min_lr: " + null + " # none\n").optimizer.min_lr, std::nullopt);
    EXPECT_EQ(load("device: {kind: cpu}  # é\noptimizer: {lr: 1, min_lr: " + null + "}\n").optimizer.lr, 1);
    EXPECT_EQ(load("comm: {backend: " + null + "}\n").comm.backend, std::nullopt);
  }
  parse_config(kGoodConfig + "optimizer:\nbatch: ~\n", "run.yaml");  // sections without keys
}

TEST(Load, HostileTextsAreRefusedInBoundedTimeAndMemory) {
  const std::string deep(500'000, '[');
  EXPECT_NE(error_with("hidden_size: 8", "hidden_size: " + deep).find("nested too deeply"), std::string::npos);
  std::string maps;
  for (int i = 0; i < 1000; ++i) maps += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  EXPECT_NE(parse_error(maps).find("unknown section"), std::string::npos);

  // "Billion laughs": each alias names the list of aliases before it.
  std::string laughs = "a: &a [x, x, x]\n";
  for (char c = 'b'; c < 'z'; ++c) laughs += fmt::format("{0}: &{0} [*{1}, *{1}, *{1}]\n", c, static_cast<char>(c - 1));
  EXPECT_NE(parse_error(laughs).find("anchors (&name) are not supported"), std::string::npos);

  const std::string error = error_with("hidden_size: 8", "hidden_size: " + std::string(900'000, '9'));
  EXPECT_LT(error.size(), 300u);
  EXPECT_LT(error_with("hidden_size: 8", std::string(900'000, 'k') + ": 8").size(), 2000u);
}

TEST(Load, MutatedTextsLoadOrSayWhatIsWrong) {
  std::mt19937 random(1);
  const std::string alphabet = "{}[]:,-?&*!|>'\"%@`# \n\tae09_.~<\xc3\xff";
  for (int i = 0; i < 3000; ++i) {
    std::string text = kGoodConfig;
    for (int n = static_cast<int>(random() % 6) + 1; n > 0; --n) {
      const size_t at = random() % text.size();
      const char c = alphabet[random() % alphabet.size()];
      switch (random() % 3) {
        case 0: text[at] = c; break;
        case 1: text.insert(at, 1, c); break;
        default: text.erase(at, random() % 20);
      }
      if (text.empty()) text.push_back(c);
    }
    try {
      const LoadedConfig loaded = parse_config(text, "run.yaml");
      EXPECT_GE(loaded.config.model.num_layers, 1);
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()), "") << text;
    }
  }
}

TEST(Load, Files) {
  const TempDir dir;
  EXPECT_EQ(message_of([&] { load_config(dir / "none.yaml"); }), (dir / "none.yaml") + ": no such file");
  EXPECT_EQ(message_of([&] { load_config(dir / "."); }), (dir / ".") + ": is a directory, expected a YAML file");
  write_text(dir / "big.yaml", kGoodConfig + std::string(1 << 20, '#'));
  EXPECT_EQ(
      message_of<DataError>([&] { load_config(dir / "big.yaml"); }),
      fmt::format("{}: has {} bytes, expected at most {}", dir / "big.yaml", kGoodConfig.size() + (1 << 20), 1 << 20));
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  for (const std::string& path : {dir / "pipe", std::string("/dev/zero")})
    EXPECT_EQ(message_of<DataError>([&] { load_config(path); }), path + ": not a regular file");
  write_text(dir / "run.yaml", kGoodConfig);
  const std::vector<std::string> sets = {"model.num_layers=3"};
  const LoadedConfig loaded = load_config(dir / "run.yaml", sets);
  EXPECT_EQ(loaded.config.model.num_layers, 3);
  EXPECT_EQ(to_string(loaded.origins.at("model.hidden_size")), (dir / "run.yaml") + ":3");
}

TEST(Load, YamlReadsBackAsTheSameValues) {
  LoadedConfig loaded =
      load_good({"optimizer.lr=0.30000000000000004", "optimizer.min_lr=1e-17", "data.seed=9223372036854775807",
                 "data.path=it's \"quoted\": \\ # {x} é", "train.run_dir=true", "device.peak_tflops=auto",
                 "data.tokenizer_model=~", "parallel.order=tp-pp-dp"});
  const LoadedConfig again = parse_config(to_yaml(loaded.config), "again.yaml");
  EXPECT_EQ(to_yaml(loaded.config), to_yaml(again.config)) << to_yaml(again.config);
  EXPECT_EQ(again.config.data.path, "it's \"quoted\": \\ # {x} é");
  EXPECT_EQ(again.config.optimizer.lr, 0.30000000000000004);
}

}  // namespace
}  // namespace trivet
